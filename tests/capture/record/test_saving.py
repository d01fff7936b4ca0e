"""What counts as saving a checkpoint, and as loading data: with it the start of a loader's workers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from lostflops.capture.record.injected.lostflops_recorder import HOOKS
from lostflops.capture.record.injected.lostflops_recorder.steps import clock, hooks

WRITES = 0.005  # s


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Any:
    counted = SimpleNamespace(on=True, window=None, thread=0, checkpoint=0, data=0, logged=lambda loss: None)
    for module in (clock, hooks):
        monkeypatch.setattr(module, "CLOCK", counted)
    monkeypatch.setattr(clock, "NESTED", {})
    return counted


def writes(*args: object) -> tuple[object, ...]:
    time.sleep(WRITES)
    return args


def test_a_checkpoint_of_the_trainer_counts_once_with_all_that_it_writes(counting: Any) -> None:
    """Weights that went to safetensors were idle time without a reason."""
    tensors = SimpleNamespace(save_file=writes)
    torch = SimpleNamespace(__name__="torch.serialization", save=writes)
    hooks.safetensors(tensors)
    hooks.saving(torch)

    class Trainer:
        def log(self, logs: object) -> object:
            return logs

        def _save_checkpoint(self, model: object) -> object:
            return writes(), tensors.save_file(model), torch.save("optimizer")

    hooks.trainer(SimpleNamespace(Trainer=Trainer))
    begun = time.monotonic_ns()
    assert Trainer()._save_checkpoint("model") == ((), ("model",), ("optimizer",))
    took = time.monotonic_ns() - begun
    assert 3 * WRITES * 1e9 <= counting.checkpoint <= took
    tensors.save_file("more")
    assert counting.checkpoint >= 4 * WRITES * 1e9


def test_an_older_trainer_or_safetensors_lacks_what_is_counted(counting: Any) -> None:
    class Trainer:
        def log(self, logs: object) -> object:
            return logs

    hooks.trainer(SimpleNamespace(Trainer=Trainer))
    hooks.safetensors(SimpleNamespace())
    assert not hasattr(Trainer, "_save_checkpoint") and "safetensors.torch" in HOOKS


def test_the_start_of_a_loader_s_workers_counts_as_loading_and_is_named(counting: Any) -> None:
    """It was idle time without a reason, at the start of each epoch."""
    names: list[str] = []

    def within(name: str, function: Any, *args: Any) -> Any:
        names.append(name)
        return function(*args)

    class Base:
        def __next__(self) -> object:
            return writes()

    class WithWorkers(Base):
        def __init__(self, loader: Any) -> None:
            writes(loader)

    counting.window = SimpleNamespace(ranges=SimpleNamespace(attached=True, within=within))
    hooks.dataloader(SimpleNamespace(_BaseDataLoaderIter=Base, _MultiProcessingDataLoaderIter=WithWorkers))
    for workers in (2, 1):
        next(WithWorkers(SimpleNamespace(num_workers=workers)))
    assert names == [
        f"enumerate(DataLoader)#start of {each}" for each in ("2 worker processes", "1 worker process")
    ]
    assert counting.data >= 4 * WRITES * 1e9
    hooks.dataloader(SimpleNamespace(_BaseDataLoaderIter=Base))


def test_an_evaluation_of_the_trainer_is_named_in_recorded_steps(counting: Any) -> None:
    names: list[str] = []

    class Trainer:
        def log(self, logs: object) -> object:
            return logs

        def evaluate(self, data: str, metric: str = "") -> str:
            return data + metric

    def within(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(name)
        return function(*args, **kwargs)

    hooks.trainer(SimpleNamespace(Trainer=Trainer))
    for attached in (True, False):
        counting.window = SimpleNamespace(ranges=SimpleNamespace(attached=attached, within=within))
        assert Trainer().evaluate("a", metric="b") == "ab"
    assert names == ["Trainer.evaluate"]
