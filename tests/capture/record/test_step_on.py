"""`lostflops record --step-on`: steps that end elsewhere than at the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from lostflops.capture.record import recording
from lostflops.errors import BadOption
from recorded import record_script

pytest.importorskip("torch")

ENGINE = """
import asyncio, torch

class Engine:
    def __init__(self, model):
        self.model = model

    def step(self, left=1):
        with torch.no_grad():
            self.model(torch.randn(4, 8))
        return self.step(left - 1) if left else "done"

    async def serve(self):
        await asyncio.sleep(0)
        return self.step(0)

    @staticmethod
    def tokens():
        yield from range(3)

def once(model):
    return Engine(model).step()
"""
LOADER = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4)
"""


def test_inference_is_recorded_batch_by_batch(tmp_path: Path) -> None:
    script = f"{LOADER}\nfor _ in range(2):\n    for (batch,) in loader: model(batch)\n    time.sleep(.2)"
    found = record_script(tmp_path, script, options=["--steps", "3-5", "--step-on", "batch"])
    assert found.status == 0, found.said
    steps = found.steps()
    assert len(steps) == 12  # 6 batches, twice
    # A pause between epochs is in the next one's first step.
    assert [step["duration"] is not None and step["duration"] > 2e8 for step in steps].index(True) == 6
    assert found.window()["first"] == 3 and found.window()["last"] == 5
    operators = lostflops.open(found.run).table("operators")
    assert operators is not None and "aten::addmm" in operators.select("name").collect()["name"].to_list()
    assert lostflops.open(found.run).table("steps").collect().height == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("engine:Engine.step", "Engine(model).step(2)"),  # it calls itself: a step is the outermost call
        ("engine:Engine.serve", "asyncio.run(Engine(model).serve())"),
    ],
)
def test_a_function_ends_the_steps_and_the_optimizer_does_not(tmp_path: Path, what: str, call: str) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    script = (
        f"\nimport asyncio, engine\nfrom engine import Engine\nfor _ in range(8):\n    train(2)\n    {call}"
    )
    found = record_script(tmp_path, script, options=["--steps", "3-5", "--step-on", what])
    assert found.status == 0, found.said
    assert len(found.steps()) == 8
    assert all(step["micro_steps"] == 2 and step["optimizer"] > 0 for step in found.steps())
    assert "recorded steps 3-5 on 1 rank" in found.said


def test_what_never_ended_a_step_is_said(tmp_path: Path) -> None:
    for what, script, why in (
        ("engine:once", "import engine", "engine:once was never called, so no step ended"),
        ("batch", "train(3)", "no DataLoader returned a batch, so no step ended"),
        ("engine:Engine.tokens", "import engine", "lostflops.log says why"),
    ):
        folder = tmp_path / what.replace(":", "-")
        folder.mkdir()
        (folder / "engine.py").write_text(ENGINE)
        found = record_script(folder, f"\n{script}", options=["--step-on", what])
        assert found.status == 0 and "nothing was recorded" in found.said and why in found.said
        log = found.run / "lostflops.log"
        assert (
            (("is a generator, and a call of it cannot be a step") in log.read_text())
            if "Engine." in what
            else not log.exists()
        )


@pytest.mark.parametrize("text", ["", "step", ":f", "a:", "a b:c", "a:b()", "a..b:c", "a:b.", "a:b;c"])
def test_what_is_no_function_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="does not say what ends a step"):
        recording.step_on(text)


def test_names_of_what_ends_a_step() -> None:
    assert recording.step_on("optimizer") is None
    assert str(recording.step_on("batch")) == "batch"
    assert str(recording.step_on("a.b:C.d")) == "a.b:C.d"
    with pytest.raises(BadOption, match="script itself"):
        recording.step_on("__main__:train")


def test_steps_that_a_loss_scaler_skips_are_steps(tmp_path: Path) -> None:
    """An overflow in step 4: the optimizer is not called, and the next step is no longer for it."""
    script = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for number in range(9):
    loss = model(torch.randn(4, 8)).square().mean() * (float("inf") if number == 4 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    found = record_script(tmp_path, script, options=["--steps", "3-5"])
    assert found.status == 0, found.said
    assert [step["micro_steps"] for step in found.steps()] == [1] * 9
    assert lostflops.open(found.run).table("steps").collect()["step"].to_list() == [3, 4, 5]  # type: ignore[union-attr]
