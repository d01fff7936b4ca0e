"""A context for training loops with Hugging Face's Accelerate.

    from lostflops.integrations.accelerate import lostflops_accelerate

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with lostflops_accelerate(accelerator, model, output="runs/a", offload={"budget": "70 GiB"}) as training:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
    print(training.report)

The loop stays as it is: passes of the model, `accelerator.backward` and the prepared optimizers tell the
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from lostflops.integrations.steps import Steps, tokens_in
from lostflops.integrations.training import TrainingRun, missing, replaced, said
from lostflops.optimize.refused import Refused

try:
    from accelerate import logging
except ImportError as error:
    raise missing(__name__, "accelerate", error) from error


@contextmanager
def lostflops_accelerate(
    accelerator: Any, model: Any, *, output: str | Path | None = None, **remedies: Any
) -> Generator[TrainingRun]:
    """Turns remedies on for a prepared model, marks the steps, and reports what became of both.

    Enter it after `accelerator.prepare`. Keywords are `fp8`, `checkpoint`, `stream_frozen`, `offload`:
    arguments of their functions in `lostflops.optimize`, as a dictionary, or True. `output`: where the step
    log and the report go, the accelerator's project_dir unless given. Raises Refused for what does not exist
    or does not go together, and when no optimizer has been prepared.
    """
    if remedies.get("tune_loader"):
        raise Refused(
            "a prepared loader is Accelerate's own, and cannot be built anew",
            "call optimize.tune_loader(loader, ...).apply(loader) before accelerator.prepare",
        )
    training = TrainingRun("accelerate", output or accelerator.project_dir, remedies)
    if not accelerator._optimizers:
        raise Refused("no optimizer has been prepared", "enter this after accelerator.prepare(...)")
    undo: list[Callable[[], None]] = []
    try:
        steps = training.begin(model)
        undo += _followed(accelerator, model, steps)
        yield training
    except BaseException as error:
        _end(training, undo, accelerator, error)
        raise
    _end(training, undo, accelerator, None)


def _end(
    training: TrainingRun, undo: list[Callable[[], None]], accelerator: Any, error: BaseException | None
) -> None:
    while undo:
        undo.pop()()
    report = training.end(error)
    if report is not None:
        cast("Any", logging).get_logger("accelerate.lostflops").info(said(report))
        if error is None and accelerator.trackers:
            accelerator.log(training.numbers())


def _followed(accelerator: Any, model: Any, steps: Steps) -> list[Callable[[], None]]:
    """Have the model, the accelerator and its optimizers tell the steps; what undoes that."""

    def before(module: Any, args: Any, kwargs: Any) -> None:
        if module.training:
            if not steps.is_open("step"):
                steps.begin("step")
            steps.microbatch(tokens_in(kwargs) or (tokens_in(args[0]) if args else None))
            steps.begin("forward")
        else:
            steps.begin("evaluation")

    def after(module: Any, args: Any, output: Any) -> None:
        steps.end("forward" if module.training else "evaluation")

    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        steps.passed_backward()
        steps.lost(loss / accelerator.gradient_accumulation_steps)
        with steps.part("backward"):
            return backwards(loss, *args, **kwargs)

    backwards = accelerator.backward
    hooks = (
        model.register_forward_pre_hook(before, with_kwargs=True),
        # Called after a forward that failed, too.
        model.register_forward_hook(after, always_call=True),
    )
    return [
        *(hook.remove for hook in hooks),
        replaced(accelerator, "backward", backward),
        *(
            replaced(optimizer, "step", _stepping(accelerator, optimizer, steps, leads=not n))
            for n, optimizer in enumerate(accelerator._optimizers)
        ),
    ]


def _stepping(accelerator: Any, optimizer: Any, steps: Steps, leads: bool) -> Callable[..., Any]:
    """An optimizer's step that tells of itself. Of several optimizers the first counts the steps."""
    inner = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        if not accelerator.sync_gradients:  # Accelerate does nothing then: gradients accumulate
            return inner(*args, **kwargs)
        with steps.part("optimizer"):
            result = inner(*args, **kwargs)
        if leads and not accelerator.optimizer_step_was_skipped:
            steps.step_ended()
        return result

    return step
