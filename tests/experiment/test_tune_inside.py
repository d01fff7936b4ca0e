"""What `lostflops tune` changes inside a real PyTorch job, all at once in one start."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lostflops import run_folder
from lostflops.experiment.proof import starts
from lostflops.experiment.proof.running import command
from lostflops.experiment.tune import changes
from lostflops.experiment.tune.changes import AppliedChange
from lostflops.experiment.tune.injected import lostflops_tuner
from lostflops.experiment.tune.injected.lostflops_tuner import gradients, loader

pytest.importorskip("torch", reason="pip install torch")

JOB = """
import gc, json, logging, sys, threading
import torch, torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
import lostflops

torch.set_num_threads(64)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)

class Numbers(Dataset):
    blur = torch.nn.Linear(8, 8).requires_grad_(False)
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return self.blur(torch.full((8,), index / 48))

torch.manual_seed(0)
inner = torch.nn.Linear(8, 4)
inside = []
inner.register_forward_hook(lambda module, given, out: inside.append(str(out.dtype)))
model = torch.nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=1)
sent = []
def hook(state, bucket):
    sent.append(bucket.index())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
model.register_comm_hook(None, hook)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(Numbers(), 2)
for n, batch in enumerate(loader):
    out = model(batch)
    loss = out.float().square().mean()
    loss.backward()
    if n % 2:
        optimizer.step()
        optimizer.zero_grad()
        lostflops.log(loss=loss)
ran = []
def block(x):
    ran.append(1)
    return x.sin()
checkpoint(block, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
writers = []
class Lines(logging.Handler):
    def emit(self, record):
        writers.append(threading.current_thread().name)
logging.getLogger().addHandler(lines := Lines())
logging.warning("line %d", 7)
logging.getLogger().removeHandler(lines)
told = {
    "ran": len(ran), "writers": writers,
    "threads": torch.get_num_threads(), "workers": loader.num_workers, "sent": len(sent),
    "dtype": str(out.dtype), "inside": inside[-1],
    "fused": optimizer.param_groups[0]["fused"], "collecting": gc.isenabled(),
    "weights": str(inner.weight.dtype), "data": str(batch.dtype),
}
print(json.dumps(told))
if "two" in sys.argv:  # models: each is in every micro-batch, then each in another one
    other = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    other.register_comm_hook(None, hook)
    sent.clear()
    for _ in range(2):
        other(model(batch.float()).float()).sum().backward()
    optimizer.step()
    print(f"sent {len(sent)}")
    model(batch.float()).sum().backward()
    other(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
MADE = (
    AppliedChange("loader-workers", {"workers": 2}),
    AppliedChange("gc-freeze"),
    AppliedChange("cpu-threads", {"threads": 1}),
    AppliedChange("gradient-accumulation", {"passes": 2}),
    AppliedChange("bucket-size", {"mb": 100}),
    AppliedChange("fused-optimizer"),
    AppliedChange("bf16"),
    AppliedChange("tf32"),
    AppliedChange("pinned-copies"),
    AppliedChange("selective-checkpointing"),
    AppliedChange("log-less"),
)


def test_every_change_of_a_process_has_what_makes_it() -> None:
    for name, made in lostflops_tuner.CHANGES.items():
        assert changes.CHANGES[name].is_inside
        for _, function in made:
            file, _, called = function.partition(".")
            assert callable(getattr(import_module(f"{lostflops_tuner.__name__}.{file}"), called))
    own = {name for name, change in changes.CHANGES.items() if change.is_inside}
    assert own == {*lostflops_tuner.CHANGES}


def test_what_a_change_would_break_is_left_alone() -> None:
    """Samplers that are asked ahead go on elsewhere after a checkpoint; a static graph has to be sent."""

    class Dataset: ...

    class Loader:
        def __init__(self, dataset: Any, **given: Any) -> None:
            self.given = given

    noted: list[str] = []
    torchs = SimpleNamespace(DataLoader=Loader, IterableDataset=type("IterableDataset", (), {}))
    loader.workers(torchs, noted.append, workers=2)
    resumes = SimpleNamespace(state_dict=dict)
    for given in ({"sampler": resumes}, {"batch_sampler": SimpleNamespace(sampler=resumes)}):
        assert Loader(Dataset(), **given).given == given
    assert Loader(Dataset(), sampler=[1]).given["num_workers"] == 2 and noted == ["num_workers 0 -> 2"]

    class Parallel:
        static_graph, require_backward_grad_sync = True, True

        def forward(self) -> bool:
            return self.require_backward_grad_sync

    gradients.sent_once(SimpleNamespace(DistributedDataParallel=Parallel), noted.append, passes=2)
    assert [Parallel().forward() for _ in range(2)] == [True, True] and len(noted) == 1


def test_every_change_is_made_to_a_job_that_knows_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    shim = tmp_path / "shim"
    changes.write(MADE, shim)
    words = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "meet"), "two"]
    ended = command.run(changes.command_line(words, MADE, shim), tmp_path / "run", None)
    printed = (tmp_path / "run" / run_folder.OUTPUT).read_text()
    told = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert told == {
        "ran": 1, "writers": ["lostflops-logs"],
        "threads": 1, "workers": 2, "sent": 12, "dtype": "torch.float32",
        "inside": "torch.bfloat16", "fused": True,
        "collecting": False, "weights": "torch.float32", "data": "torch.float32",
    }  # fmt: skip
    # Both models send once a step. A step of one micro-batch of each would have used gradients that were not
    # sent.
    assert "sent 2" in printed.splitlines()
    assert ended.failed and "a step of 1 micro-batches in the place of 2" in ended.said()
    # The recorder saw its steps beside it.
    assert len(starts.read(ended.run).losses()) == 12
    made = changes.taken_up(shim)
    assert made["loader-workers"] == ["num_workers 0 -> 2"]
    assert made["gradient-accumulation"] == ["no_sync in 1 of 2 micro-batches"]
    assert made["selective-checkpointing"] and made["log-less"]
    assert made["fused-optimizer"] == ["AdamW(fused=True)"] and made["bucket-size"] == ["bucket_cap_mb=100"]
    assert not changes.failed(shim)
    # Without a GPU there is nothing to pin for, and no TF32.
    import torch

    assert torch.cuda.is_available() or not {"pinned-copies", "tf32"} & made.keys()
