"""`lostflops.log`: what a job says of its steps stands at the right one, and costs nothing elsewhere."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import pytest

import lostflops
from lostflops import run_folder
from lostflops.capture.record.injected.lostflops_recorder.steps.clock import Clock
from lostflops.ingest.step_log import reader as step_logs
from recorded import record, record_script

BEFORE = """
import lostflops
for n in range(6):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    lostflops.log(loss=loss if n else float("nan"), tokens=torch.tensor(100 + n), samples=4)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""
AFTER = """
import lostflops
for n in range(6):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    lostflops.log(loss=loss.item() if n else float("nan"), tokens=100 + n, samples=4)
    print(loss.item())
"""


@pytest.mark.parametrize("script", [BEFORE, AFTER], ids=["before the optimizer", "after it"])
def test_what_the_job_says_stands_at_its_step(script: str, tmp_path: Path) -> None:
    found = record_script(tmp_path, script)
    assert found.status == 0 and "Warning" not in found.said, found.said
    printed = [float(line) for line in found.out.split()]
    ((log,), notes) = step_logs.logged(step_logs.documents([found.run]))
    assert not notes and not log.torn
    assert log.steps[0].loss == "nan"
    assert [step.loss for step in log.steps[1:]] == printed[1:]  # to the last bit
    assert [step.tokens for step in log.steps] == [100 + n for n in range(6)]
    table = lostflops.open(found.run).table("step_log")
    assert table is not None
    rows = table.select("loss", "tokens", "samples").collect().rows()
    assert rows == [(loss if n else None, 100 + n, 4) for n, loss in enumerate(printed)]
    assert all(
        set(line) <= set(run_folder.TOLD_FIELDS) for line in found.lines() if line.get("kind") == "told"
    )
    ends = lostflops.open(found.run).table("rank_ends")
    assert ends is not None
    (held,) = ends.collect()["peak_resident"].to_list()
    assert 50 << 20 < held < 4 << 30 and held == log.peaks["peak_resident"]


def test_nonsense_stops_no_training(tmp_path: Path) -> None:
    script = (
        "import lostflops\nfor n in range(6):\n    train(1)\n    lostflops.log(loss=object(), tokens='many')"
    )
    found = record_script(tmp_path, script)
    assert found.status == 0, found.said
    assert not any(line.get("kind") == "told" for line in found.lines())
    assert "what the job says of its steps: TypeError" in (found.run / run_folder.MESSAGES).read_text()


def test_without_a_recording_nothing_is_asked_of_the_number() -> None:
    lostflops.log(loss=object(), tokens=None)


@pytest.mark.parametrize(
    ("line", "loss"),
    [('"loss":"inf"', "inf"), ('"loss":3', 3.0), ('"loss":0.1', 0.1), ('"tokens":5', None)],
)
def test_a_line_of_its_own_belongs_to_its_step(line: str, loss: object, tmp_path: Path) -> None:
    node = tmp_path / "node-0000"
    node.mkdir()
    text = ['{"kind":"rank","rank":0}', '{"step":7,"end":9,"duration":4}', f'{{"kind":"told","of":7,{line}}}']
    text += ['{"kind":"told","of":8,"loss":9.5}', '{"kind":"told","of":-8,"loss":9.5}', '{"kind":"told"}']
    (node / "steps-00000-a0.jsonl").write_text("\n".join(text) + "\n")
    ((log,), _) = step_logs.logged(step_logs.documents([tmp_path]))
    (step,) = log.steps
    assert step.loss == loss and step.tokens == (5 if loss is None else None) and log.torn == 1
    stored = step_logs.tables([log])["step_log"]["loss"].to_list()
    assert stored == [loss if isinstance(loss, float) and math.isfinite(loss) else None]


def test_a_recorder_without_pytorch_logs_nothing_unless_only_the_log_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("def step(): pass")
    script = "import loop\nfor _ in range(9): loop.step()"
    found = record(tmp_path, sys.executable, "-c", script, options=["--step-on", "loop:step"])
    assert found.status == 0 and not list(found.run.glob(run_folder.STEP_LOGS_OF_RUN))


# As transformers' Trainer does: it logs when the optimizer has been called, here every second step.
TRAINER = """
from transformers.trainer import Trainer
trainer, since = Trainer(), 0.0
for n in range(5):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    since += loss.item()
    if n % 2:
        trainer.log({"loss": since / 2, "epoch": n}, 0.5)
        since = 0.0
        trainer.log({"eval_loss": 0.123456})
print(trainer.logged)
"""


def test_losses_that_the_trainer_logs_stand_at_the_step_that_has_just_ended(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "trainer.py").write_text(
        "class Trainer:\n    logged = []\n    def log(self, logs, start_time=None):\n"
        "        self.logged += [logs['loss']] if 'loss' in logs else []\n"
    )
    found = record_script(tmp_path, TRAINER, options=("--steps", "3-4"))
    assert found.status == 0, found.said
    ((log,), _) = step_logs.logged(step_logs.documents([found.run]))
    one, two = ast.literal_eval(found.out)
    assert [step.loss for step in log.steps] == [None, one, None, two, None]


def test_what_the_job_says_of_its_loss_goes_before_what_a_framework_logs() -> None:
    clock = Clock()
    clock.step = 4
    clock.tell({"tokens": 12})
    clock.logged(0.12345)
    clock.tell({"loss": 7.5})
    clock.logged(0.23456)
    assert clock._told._waiting == [(3, {"tokens": 12}), (3, {"loss": 0.12345}), (3, {"loss": 7.5})]  # pyright: ignore[reportPrivateUsage]


def test_losses_of_batches_add_up_to_that_of_the_step_that_has_ended() -> None:
    clock = Clock()
    clock.step = 4
    clock.parts([0.25, 0.5])
    clock.tell({"loss": 7.5})
    clock.parts([1.0])
    assert clock._told._waiting == [(3, {"loss": 0.75}), (3, {"loss": 7.5})]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("logged", "told"),
    [(0.12345, True), (0.1234, False), (math.inf, True), (1, False), ("0.12345", False), (None, False)],
)
def test_a_rounded_loss_is_not_told(logged: object, told: bool) -> None:
    clock = Clock()
    clock.step = 4
    clock.logged(logged)
    assert clock._told._waiting == ([(3, {"loss": logged})] if told else [])  # pyright: ignore[reportPrivateUsage]
