"""A callback for Hugging Face's Trainer.

    from lostflops.integrations.transformers_trainer import LostflopsCallback

    trainer = Trainer(..., callbacks=[LostflopsCallback(checkpoint=True, offload={"budget": "70 GiB"})])
    trainer.train()

Callbacks are not told when a training fails, nor when the forward pass begins. So the trainer is looked up
when the training begins, and a few methods of that one object are wrapped until it has ended.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lostflops.integrations.steps import Steps, tokens_in
from lostflops.integrations.training import TrainingRun, missing, replaced, said
from lostflops.optimize.refused import Refused

try:
    from transformers import Trainer, TrainerCallback
    from transformers.utils import logging
except ImportError as error:
    raise missing(__name__, "transformers", error) from error

# All that can fail between the begin and the end of a training happens in one of these.
GUARDED = ("_run_epoch", "_finalize_training", "training_step", "_evaluate")

_Callback: Any = TrainerCallback


class LostflopsCallback(_Callback):
    """Turns remedies on while `train()` runs, marks its steps, and reports what became of both.

    Keywords are `fp8`, `checkpoint`, `stream_frozen`, `offload`: arguments of their functions in
    `lostflops.optimize`, as a dictionary, or True. `tune_loader={"step_seconds": ...}` chooses the workers of
    the trainer's data loader, for which the callback must be given to the Trainer when that is made.
    `output`: where the step log and the report go, the trainer's `output_dir` unless given. `report` holds
    the last report. Raises Refused for what does not exist or does not go together.
    """

    def __init__(self, output: str | Path | None = None, **remedies: Any) -> None:
        self._output, self._remedies = output, remedies
        self._training = TrainingRun("transformers", output, remedies)
        self._loader: dict[str, Any] | None = None
        self._undo: list[Callable[[], None]] = []
        self._trainer: Any = None
        self.report: dict[str, Any] | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        wanted = self._training.remedies.on.get("tune_loader")
        if wanted is not None:
            self._loader = _tuned(_calling_trainer(), args, wanted)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._end(None)  # a training that failed unseen
        if self._loader is None and "tune_loader" in self._training.remedies.on:
            raise Refused(
                "the trainer has made its data loader already",
                "give the callback to Trainer(callbacks=[...])",
            )
        self._training = TrainingRun("transformers", self._output or args.output_dir, self._remedies)
        self._training.loader = self._loader
        self._trainer = _calling_trainer()
        steps = self._training.begin(model)
        if self._trainer is not None:
            self._wrap(self._trainer, steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._told("begin", "step")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._told("begin", "optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._told("end", "optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._training.steps is not None:
            self._training.steps.step_ended()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end(None)

    def _told(self, what: str, name: str) -> None:
        if self._training.steps is not None:
            getattr(self._training.steps, what)(name)

    def _wrap(self, trainer: Any, steps: Steps) -> None:
        for name in GUARDED:
            if hasattr(trainer, name):
                ours = functools.partial(self._guarded, getattr(trainer, name))
                self._undo.append(replaced(trainer, name, ours))

        def training_step(*args: Any, **kwargs: Any) -> Any:
            loss = trains(*args, **kwargs)
            steps.lost(loss)  # divided by the number of microbatches already
            return loss

        trains = trainer.training_step
        self._undo.append(replaced(trainer, "training_step", training_step))

        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not model.training:
                return losses(model, inputs, *args, **kwargs)
            steps.microbatch(tokens_in(inputs))
            with steps.part("forward"):
                return losses(model, inputs, *args, **kwargs)

        def backward(*args: Any, **kwargs: Any) -> Any:
            steps.passed_backward()
            with steps.part("backward"):
                return backwards(*args, **kwargs)

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            with steps.part("evaluation"):
                return evaluates(*args, **kwargs)

        losses, backwards, evaluates = trainer.compute_loss, trainer.accelerator.backward, trainer.evaluate
        self._undo += [
            replaced(trainer, "compute_loss", compute_loss),
            replaced(trainer.accelerator, "backward", backward),
            replaced(trainer, "evaluate", evaluate),
        ]

    def _guarded(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException | None) -> None:
        while self._undo:
            self._undo.pop()()
        trainer, self._trainer = self._trainer, None
        report = self._training.end(error)
        if report is None:
            return
        self.report = report
        cast("Any", logging).get_logger("transformers.lostflops").info(said(report))
        if trainer is not None and error is None:
            trainer.log(self._training.numbers())


def _calling_trainer() -> Any:
    """The Trainer that is calling us; None when it is none of transformers' own kind."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer):
            return cast("Any", found)
        frame = frame.f_back
    return None


def _tuned(trainer: Any, args: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Give the trainer's arguments the loader setting that fits its data; its record."""
    from torch.utils.data import DataLoader, IterableDataset

    from lostflops import optimize

    if trainer is None or trainer.train_dataset is None:
        raise Refused("there is no training data to tune a loader for", "give the Trainer a train_dataset")
    if "step_seconds" not in wanted:
        raise Refused(
            "how long a step takes is not known before the first one",
            "give tune_loader={'step_seconds': ...}: the median of an earlier run stands in its report",
        )
    size = args.per_device_train_batch_size * max(1, args.n_gpu)
    dataset, collator = _as_trained_with(trainer, args)
    shuffle = None if isinstance(dataset, IterableDataset) else True
    loader = cast("Any", DataLoader)(
        dataset, batch_size=size, shuffle=shuffle, collate_fn=collator,
        num_workers=args.dataloader_num_workers, persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor, drop_last=args.dataloader_drop_last,
    )  # fmt: skip
    setting = optimize.tune_loader(loader, **wanted)
    chosen = setting.arguments
    args.dataloader_num_workers = chosen["num_workers"]
    args.dataloader_pin_memory = chosen["pin_memory"]
    args.dataloader_prefetch_factor = chosen.get("prefetch_factor")
    args.dataloader_persistent_workers = chosen.get("persistent_workers", False)
    if "in_order" in chosen:
        args.dataloader_in_order = chosen["in_order"]
    return setting.record()


def _as_trained_with(trainer: Any, args: Any) -> tuple[Any, Any]:
    """The trainer's data set and collator, without the columns that its model does not take."""
    dataset: Any = trainer.train_dataset
    if not args.remove_unused_columns:
        return dataset, trainer.data_collator
    if hasattr(dataset, "remove_columns"):  # of the datasets library
        return trainer._remove_unused_columns(dataset), trainer.data_collator
    trainer._set_signature_columns_if_needed()
    return dataset, _KnownColumns(trainer.data_collator, frozenset(trainer._signature_columns))


@dataclass(frozen=True)
class _KnownColumns:
    """A collator that sees these columns only."""

    collator: Callable[[Any], Any]
    columns: frozenset[str]

    def __call__(self, samples: list[Any]) -> Any:
        return self.collator([self._known(sample) for sample in samples])

    def _known(self, sample: Any) -> Any:
        if not isinstance(sample, dict):
            return sample
        columns = cast("dict[str, Any]", sample).items()
        return {name: value for name, value in columns if name in self.columns}
