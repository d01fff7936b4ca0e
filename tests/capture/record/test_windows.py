"""When `lostflops record` records, for how long, and what it names in a trace."""

from __future__ import annotations

import errno
import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.capture.record.injected.lostflops_recorder.rank import Rank
from lostflops.capture.record.injected.lostflops_recorder.settings import RecorderSettings
from lostflops.capture.record.injected.lostflops_recorder.windows import memory, reason, schedule
from lostflops.capture.record.recording import Recording
from lostflops.errors import BadOption
from recorded import TRAIN, record, record_script


def settings(**given: Any) -> RecorderSettings:
    asked: Mapping[str, Any] = {
        "steps": [[10, 14]], "every": 0, "delay": None, "duration": None, "length": 5, "began": 0.0,
        "ranks": None, "cuda": True, "shapes": True, "python": False, "memory": False, "grow": 0,
        "keep_free": 0,
    }  # fmt: skip
    return RecorderSettings(**{**asked, **given})


def planned(folder: Path, rank: int = 0, **given: Any) -> schedule.WindowSchedule:
    return schedule.WindowSchedule(Rank(rank, None, None, "node-0000", 0, "RANK"), settings(**given))


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(schedule, "BOOT", str(tmp_path))
    monkeypatch.setattr(schedule, "LOOK_EVERY", 0.0)
    return tmp_path


def spans(one: schedule.WindowSchedule, most: int) -> list[tuple[int, int | None]]:
    found: list[tuple[int, int | None]] = []
    while len(found) < most and (span := one.current(0, 1.0)) is not None:
        found.append((span.first, span.last))
        one.done()
    return found


def test_ranges_come_in_turn_and_again(boot: Path) -> None:
    assert spans(planned(boot, steps=[[3, 4], [7, 7]]), 9) == [(3, 4), (7, 7)]
    again = planned(boot, steps=[[3, 4], [7, 7]], every=10)
    assert spans(again, 5) == [(3, 4), (7, 7), (13, 14), (17, 17), (23, 24)]
    assert spans(planned(boot, rank=5, ranks=[[0, 4]]), 1) == []


def test_a_rank_that_is_past_the_step_that_another_chose_goes_by_its_own(boot: Path) -> None:
    slow, ahead = (planned(boot, rank=rank, delay=1.0, duration=2.0) for rank in (0, 1))
    first = [one.current(step, 0.1) for one, step in ((slow, 3), (ahead, 40))]
    assert [span and span.first for span in first] == [5, 42]


def test_after_a_delay_the_ranks_begin_and_end_together(boot: Path) -> None:
    early = planned(boot, rank=3, delay=1.0, duration=0.0)
    late = planned(boot, rank=2, delay=1.0, duration=0.0)
    begins = early.current(40, 1.0)
    assert begins is not None and (begins.first, begins.last) == (42, None)
    assert late.current(41, 1.0) == begins
    assert early.last_of(begins, 44, 0.0) == 44
    assert late.last_of(begins, 43, 0.0) == 44
    waiting = planned(boot, delay=1.0, began=4e9)
    assert waiting.current(40, 1.0) is None


def test_windows_that_cannot_be_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"steps": ((10, None),)},
        {"steps": ((10, 14),), "every": 5},
        {"steps": ((10, None),), "every": 50, "duration": 1.0},
        {"every": 50, "delay": 1.0},
    ]
    for given in wrong:
        with pytest.raises(BadOption):
            Recording(["job"], Path("run"), **given)
    Recording(["job"], Path("run"), steps=((10, 14),), every=6)


def test_several_windows_and_what_they_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # Two micro-steps a step, one of them with a checkpoint, whose recomputation is no pass of its own.
    # The model is saved as a whole, inside a window and outside of all.
    script = """
from torch.utils.checkpoint import checkpoint
class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    def forward(self, x, name=None, module=None):
        return checkpoint(self.inner, x, use_reentrant=True).square().mean()
model = Mine()
class Twice(torch.optim.AdamW):
    def step(self, closure=None): return super().step(closure)
torch.optim.AdamW(model.parameters())  # PyTorch names the inner call too, once this is there
optimizer = Twice(model.parameters())
torch.nn.Linear(3, 3)(torch.randn(3)).sum()
for number, batch in enumerate(torch.utils.data.DataLoader(torch.randn(60, 8).requires_grad_(), 2)):
    model(batch, name="theirs", module="theirs").backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model, f"model-{number // 2}.pt")
print(Mine.__dict__.get("__call__"))
"""
    recorded = record_script(tmp_path, script, options=("--steps", "3-4,7", "--every", "10"))
    assert recorded.status == 0, recorded.said
    assert recorded.out == "None\n"
    assert recorded.said.startswith("recorded steps 3-4, 7, 13-14 on 1 rank -> ")
    assert [(w["first"], w["last"]) for w in recorded.windows()] == [(3, 4), (7, 7), (13, 14)]
    assert [step["step"] for step in recorded.steps() if step["window"]] == [3, 4, 7, 13, 14]
    assert {step["micro_steps"] for step in recorded.steps()} == {2}
    saved = [(tmp_path / f"model-{step}.pt").read_bytes() for step in (1, 3)]
    assert not any(b"lostflops" in model for model in saved)

    (file,) = recorded.run.glob("node-*/window-*-w000.pt.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    named = [event for event in events if event.get("cat") == "user_annotation"]
    count = {name: sum(e["name"].startswith(name) for e in named) for name in NAMES}
    assert count == {"ProfilerStep#": 2, "forward#Mine": 4, "backward": 4, "enumerate(DataLoader)": 4,
                     "Optimizer.step#Twice": 4}  # fmt: skip
    steps = [e for e in named if e["name"].startswith("ProfilerStep#")]
    for one in named:
        if one["name"].startswith("Optimizer.step#"):
            begins, ends = one["ts"], one["ts"] + one["dur"]
            assert sum(s["ts"] < begins < ends <= s["ts"] + s["dur"] for s in steps) == 1
        for other in named:
            begins, ends = one["ts"], one["ts"] + one["dur"]
            assert not begins < other["ts"] < ends < other["ts"] + other["dur"], "two ranges cross"
    table = lostflops.open(recorded.run).table("steps")
    assert table is not None
    assert table.collect()["step"].to_list() == [3, 4, 7, 13, 14]


NAMES = ("ProfilerStep#", "forward#Mine", "backward", "enumerate(DataLoader)", "Optimizer.step#Twice")


def test_a_window_by_time_is_the_same_on_all_ranks_of_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
import torch.distributed as dist
dist.init_process_group("gloo")
optimizer.register_step_post_hook(lambda *_: (dist.all_reduce(torch.ones(1)), time.sleep(.02)))
until = time.time() + 3
while dist.all_reduce(more := torch.tensor(float(time.time() < until))) or more.item():
    train(5)
dist.barrier()
dist.destroy_process_group()
"""
    (tmp_path / "train.py").write_text(TRAIN + script)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ("--delay", "1", "--duration", "0.3s")
    recorded = record(tmp_path, *launcher, "train.py", options=options)
    assert recorded.status == 0, recorded.said
    for rank in (0, 1):
        who = recorded.lines(rank)[0]
        assert (who["rank"], who["local"], who["world"], who["source"]) == (rank, rank, 2, "process group")
    ranks = lostflops.open(recorded.run).table("ranks")
    assert ranks is not None and sorted(ranks.collect()["rank"]) == [0, 1]
    first, second = recorded.window(0), recorded.window(1)
    assert (first["state"], second["state"]) == ("complete", "complete")
    assert (first["first"], first["last"]) == (second["first"], second["last"])
    lengths = [step["duration"] + step["own"] for step in recorded.steps() if step["window"]]
    assert sum(lengths[:-3]) < 0.3e9 < sum(lengths)  # the ranks agree on its end a step or two ahead


def test_a_gpus_memory_history_is_kept_for_the_window_unless_the_job_keeps_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cuda:
        """Stands for a PyTorch with CUDA, which these tests do not have."""

        def __init__(self, recording: bool) -> None:
            self.calls: list[object] = []
            self.cuda = self.memory = self._C = self
            self.recording = recording

        def is_available(self) -> bool:
            return True

        is_initialized = is_available

        def _cuda_isHistoryEnabled(self) -> bool:  # noqa: N802
            return self.recording

        def _record_memory_history(self, enabled: object = "all", **given: object) -> None:
            self.calls.append(enabled)

        def _dump_snapshot(self, path: str) -> None:
            Path(path).write_bytes(b"pickle")

    free, taken = Cuda(recording=False), Cuda(recording=True)
    monkeypatch.setattr(memory.log, "write", lambda message: None)
    history = memory.History(free)
    history.start()
    assert history.dump(str(tmp_path / "a"))
    assert (tmp_path / "a").exists()
    assert free.calls == ["all", None]
    history = memory.History(taken)
    history.start()
    assert not history.dump(str(tmp_path / "b"))
    assert taken.calls == []


def test_a_disk_that_is_full_has_its_code_whoever_notices_it() -> None:
    assert reason.of(OSError(errno.ENOSPC, "No space left on device")).code == "disk_full"
    assert reason.of(reason.Lost(reason.DISK_FULL, "only 3 MB are free")).code == "disk_full"
    assert reason.of(OSError(errno.EIO, "Input/output error")).code == "not_written"
    unfinished = reason.of(FileNotFoundError(errno.ENOENT, "No such file or directory", ".window.tmp"))
    assert unfinished.code == "not_written" and "the disk is full, or a quota" in unfinished.text
    assert reason.of(RuntimeError("No space left on device")).code == "not_written"


def test_a_window_recorded_as_planned_has_no_code() -> None:
    assert reason.fields(None) == {"reason": ""}
    early = reason.Reason(reason.JOB_ENDED, "the job ended")
    assert reason.fields(early.before_a_step) == {
        "reason": "the job ended before a whole step was recorded",
        "code": "job_ended",
    }
