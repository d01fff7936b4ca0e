"""A callback for Lightning, under either of its names.

from lostflops.integrations.lightning import LostflopsCallback

trainer = Trainer(..., callbacks=[LostflopsCallback(checkpoint=True, offload={"budget": "70 GiB"})])
trainer.fit(model, loader)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lostflops.integrations.steps import tokens_in
from lostflops.integrations.training import TrainingRun, missing, said
from lostflops.optimize.refused import Refused


def _installed() -> list[Any]:
    """The callback classes of what is installed: `lightning` and `pytorch_lightning` each have their own."""
    found: list[Any] = []
    failed: ImportError | None = None
    for name in ("pytorch_lightning", "lightning.pytorch"):
        try:
            found.append(__import__(name, fromlist=["Callback"]).Callback)
        except ImportError as error:
            failed = error
    if not found:
        raise missing(__name__, "lightning", failed or ImportError("no lightning"))
    return found


class _Watching:
    """Turns remedies on while `fit` trains, marks its steps, and reports what became of both.

    Keywords are `fp8`, `checkpoint`, `stream_frozen`, `offload`: arguments of their functions in
    `lostflops.optimize`, as a dictionary, or True. `tune_loader={"step_seconds": ...}` chooses the workers of
    a DataLoader that is given to `fit` itself. `output`: where the step log and the report go, the trainer's
    log_dir unless given. `report` holds the last report. Raises Refused for what does not exist or does not
    go together.
    """

    def __init__(self, output: str | Path | None = None, **remedies: Any) -> None:
        super().__init__()
        self._output, self._remedies = output, remedies
        self._training = TrainingRun("pytorch-lightning", output, remedies)
        self._loader: dict[str, Any] | None = None
        self._undo_loader: Callable[[], None] | None = None
        self._before = 0  # optimizer steps when the batch began
        self.report: dict[str, Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        wanted = self._training.remedies.on.get("tune_loader")
        if stage == "fit" and wanted is not None:
            self._loader, self._undo_loader = _tuned(trainer, wanted)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._training = TrainingRun(
            _name(trainer), self._output or trainer.log_dir or trainer.default_root_dir, self._remedies
        )
        self._training.loader = self._loader
        self._training.begin(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        steps = self._training.steps
        if steps is None:
            return
        self._before = trainer.global_step
        steps.microbatch(tokens_in(batch))
        steps.begin("step")
        steps.begin("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        steps = self._training.steps
        if steps is not None:
            steps.end("optimizer")  # of a loop that steps several optimizers by hand
            steps.end("forward")
            steps.passed_backward()
            steps.lost(loss)  # divided by the number of microbatches already
            steps.begin("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._training.steps is not None:
            self._training.steps.end("backward")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._training.steps is not None:
            self._training.steps.end("optimizer")  # of several optimizers the one before
            self._training.steps.begin("optimizer")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        steps = self._training.steps
        if steps is not None:
            steps.end("step")
            if trainer.global_step > self._before:
                steps.step_ended()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._training.steps is not None:
            self._training.steps.begin("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._training.steps is not None:
            self._training.steps.end("evaluation")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end(trainer, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end(trainer, exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._end(trainer, None)

    def _end(self, trainer: Any, error: BaseException | None) -> None:
        if self._undo_loader is not None:
            self._undo_loader()
            self._undo_loader = None
        report = self._training.end(error)
        if report is None:
            return
        self.report = report
        from lightning_utilities.core.rank_zero import rank_zero_info  # of either name

        cast("Any", rank_zero_info)(said(report))
        if error is None:
            for logger in trainer.loggers:
                logger.log_metrics(self._training.numbers(), step=trainer.global_step)


if TYPE_CHECKING:

    class LostflopsCallback(_Watching): ...
else:
    LostflopsCallback = type(
        "LostflopsCallback",
        (_Watching, *_installed()),
        {"__doc__": _Watching.__doc__, "__module__": __name__},
    )


def _name(trainer: Any) -> str:
    return "lightning" if type(trainer).__module__.startswith("lightning.") else "pytorch-lightning"


def _tuned(trainer: Any, wanted: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
    """Put a tuned loader in the place of the one that `fit` was given; its record, and what puts it back."""
    from torch.utils.data import DataLoader

    from lostflops import optimize

    source: Any = getattr(trainer.fit_loop, "_data_source", None)
    loader: Any = getattr(source, "instance", None)
    if not isinstance(loader, DataLoader):
        raise Refused(
            "the training data are no DataLoader that was given to fit",
            "call optimize.tune_loader where your train_dataloader() makes it",
        )
    if "step_seconds" not in wanted:
        raise Refused(
            "how long a step takes is not known before the first one",
            "give tune_loader={'step_seconds': ...}: the median of an earlier run stands in its report",
        )
    setting = optimize.tune_loader(cast("Any", loader), **wanted)
    source.instance = setting.apply(cast("Any", loader))

    def undo() -> None:
        source.instance = loader

    return setting.record(), undo
