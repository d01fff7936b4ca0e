"""Process groups that only operations tell of: the head of the file lists none, or not these."""

from __future__ import annotations

from pathlib import Path

import lostflops
from kineto_files import call, head, kernel, span, step, trace, written

ABOUT = {
    "Collective name": "allreduce", "In msg nelems": 512, "dtype": "BFloat16", "Group size": 2,
    "Process Group Name": "9", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP",
    "Process Group Ranks": "[0, 1]",
}  # fmt: skip
REDUCES = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_a_group_is_what_its_operations_say_where_no_list_has_it(tmp_path: Path) -> None:
    listed = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    more = head(0, 2)
    more["distributedInfo"]["pg_config"] = [listed]
    events = [step(0, 0, 900), span("cpu_op", "record_param_comms", 10, 30, more=ABOUT), call(15, 5, 1)]
    events += [{**kernel(100, 200, 1, REDUCES), "args": {"correlation": 1, "stream": 7, **ABOUT}}]
    written(tmp_path / "rank0.json", trace(events, more))
    ranks = lostflops.open(tmp_path).table("ranks")
    assert ranks is not None
    assert ranks.collect()["groups"][0].to_list() == [
        {"name": "0", "description": "default_pg", "ranks": [0, 1]},
        {"name": "9", "description": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": [0, 1]},
    ]
