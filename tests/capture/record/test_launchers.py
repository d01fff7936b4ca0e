"""`lostflops record` in front of the launchers people use: the real ones, with two ranks on this machine."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

import lostflops
from recorded import TRAIN, Recorded, record

pytest.importorskip("torch")

BIN = Path(sys.executable).parent
DISTRIBUTED = """
import torch.distributed as dist
if "OMPI_COMM_WORLD_RANK" in os.environ:
    names = {"RANK": "OMPI_COMM_WORLD_RANK", "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE"}
    os.environ.update({name: os.environ[theirs] for name, theirs in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters())
train(9)
dist.barrier()
dist.destroy_process_group()
"""


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the Python package {package} is not installed: `pip install {package}`")


def both_ranks(recorded: Recorded, steps: int) -> None:
    """Two ranks know who they are, logged every step, and their windows make one trace."""
    assert recorded.status == 0, recorded.said
    assert "recorded steps 3-5 on 2 ranks" in recorded.said
    for rank in (0, 1):
        who = recorded.lines(rank)[0]
        assert (who["rank"], who["local"], who["world"]) == (rank, rank, 2)
        assert who["source"] == "process group"
        assert [step["step"] for step in recorded.steps(rank)] == list(range(steps))
    trace = lostflops.open(recorded.run)
    ranks, collectives = trace.table("ranks"), trace.table("collectives")
    assert ranks is not None and collectives is not None
    assert sorted(ranks.collect()["rank"]) == [0, 1]
    assert collectives.collect().height > 0
    log = trace.table("step_log")
    assert log is not None
    assert sorted(log.collect().group_by("rank").len().rows()) == [(0, steps), (1, steps)]


def record_a_job_that_ends(folder: Path, script: str, *launcher: str, **environment: str) -> Recorded:
    """What `record` makes of a job, run again where torch aborted a rank after its last line.

    On a busy machine one run in ten without lostflops ends so as well ("terminate called without an active
    exception": a thread of torch's own outlives the process group). Everything else has to hold at once.
    """
    for turn in ("first", "second", "third"):
        place = folder / turn
        place.mkdir()
        (place / "train.py").write_text(script)
        recorded = record(place, *launcher, "train.py", **environment)
        if not (recorded.status and "terminate called without an active exception" in recorded.said):
            break
    return recorded


def test_ranks_of_mpirun(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun: `apt-get install openmpi-bin`")
    (tmp_path / "train.py").write_text(TRAIN + DISTRIBUTED)
    both_ranks(
        record(
            tmp_path,
            *("mpirun", "--oversubscribe", "-n", "2", sys.executable, "train.py", free_port()),
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        ),
        9,
    )


def free_port() -> str:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def test_ranks_of_accelerate_count_optimizer_steps_not_micro_steps(tmp_path: Path) -> None:
    needs("accelerate")
    script = """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(144, 8)), 4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for (batch,) in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
"""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    recorded = record_a_job_that_ends(tmp_path, TRAIN + script, *launcher, ACCELERATE_USE_CPU="true")
    both_ranks(recorded, 9)
    assert [step["micro_steps"] for step in recorded.steps()] == [2] * 9


def test_ranks_of_deepspeed_count_its_own_steps_at_every_stage(tmp_path: Path) -> None:
    needs("deepspeed")
    # Per step of DeepSpeed, torch's optimizer is called once at stage 0, and once per parameter group or
    # more above. A new engine takes the count over with its second step.
    script = """
torch.compile = torch._dynamo.disable  # of an optimizer of DeepSpeed that is not used here
import deepspeed
deepspeed.ops.__compatible_ops__.clear()  # or it would compile for a minute
deepspeed.init_distributed("gloo")
for stage in (0, 1, 2, 3):
    layers = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    engine, *_ = deepspeed.initialize(
        model=torch.nn.Sequential(*layers),
        optimizer=torch.optim.AdamW([{"params": layer.parameters()} for layer in layers]),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage},
        },
    )
    for _ in range(8):
        engine.backward(engine(torch.randn(4, 8)).square().mean())
        engine.step()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    launcher = [str(BIN / "deepspeed"), "--num_gpus", "2"]
    recorded = record_a_job_that_ends(tmp_path, TRAIN + script, *launcher, PATH=f"{BIN}:/usr/bin:/bin")
    both_ranks(recorded, 4 + 3 + 3 + 3)
    assert {step["micro_steps"] for step in recorded.steps()[:4]} == {2}
