"""What is changed in PyTorch, one function per module, called when that module has executed.

No global module hooks: even hooks that do nothing split compiled graphs.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from .. import compiler, failures, log, run_folder
from ..windows.sessions import SESSIONS
from .clock import CLOCK, now, timed


def optimizer(module: Any) -> None:
    """The step's boundary, outside the profiler's own range of the optimizer.

    PyTorch wraps each optimizer class with `profile_hook_step` when it is first instantiated. Wrapping the
    result of that is early enough, because nobody can have built an optimizer yet.
    """
    log.mark(run_folder.SEEN_TORCH)
    cls = module.Optimizer
    if not isinstance(inspect.getattr_static(cls, "profile_hook_step", None), staticmethod):
        log.write("this PyTorch is older than 2.0: its optimizer steps cannot be counted")
        return
    original = cls.profile_hook_step
    torch = module.torch

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        inner = original(step)
        compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            # First, so that a compiler that traces through here sees nothing but the call.
            if compiling is not None and compiling():
                return inner(*args, **kwargs)
            return outermost(inner, args, kwargs)

        return outer

    cls.profile_hook_step = staticmethod(profile_hook_step)
    try:
        compiler.hide()
    except (
        AttributeError,
        TypeError,
    ) as error:  # private to PyTorch; only compiled optimizer steps would notice
        log.write(f"torch.compile may trace into lostflops' wrappers: {error}")


def outermost(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ended: Callable[[], bool] | None = None,
    of: object = None,
) -> Any:
    """Call the step of an optimizer (`of`, or what it is called on).

    A subclass whose step calls its base class's is one call, not two.
    """
    if not CLOCK.on or getattr(CLOCK.depth, "inside", False):
        return step(*args, **kwargs)
    CLOCK.depth.inside = True
    began = now()
    try:
        result = step(*args, **kwargs)
    finally:
        CLOCK.depth.inside = False
    CLOCK.called(args[0] if of is None else of, began, ended is None or ended())
    return result


def loss_scaler(module: Any) -> None:
    """A loss scaler leaves the optimizer out where gradients overflowed: that ends a step, too."""
    cls = module.GradScaler
    step = cls.step

    @functools.wraps(step)
    def counted(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return outermost(step, (self, optimizer, *args), kwargs, of=optimizer)

    cls.step = counted


def backward(module: Any) -> None:
    """Count backward passes: several in a step are gradient accumulation."""
    inner = module.backward
    compiling: Callable[[], bool] | None = None

    @functools.wraps(inner)
    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiling
        if compiling is None:  # PyTorch has not got that far when this module has executed
            compiling = compiling_test()
        if compiling():
            return inner(*args, **kwargs)
        return CLOCK.backward(inner, args, kwargs)

    module.backward = backward


def compiling_test() -> Callable[[], bool]:
    """PyTorch's own test of whether a compiler traces what runs. Only after PyTorch was imported."""
    found = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None)
    return found or (lambda: False)


def dataloader(module: Any) -> None:
    """Batches that are taken from a loader, and the start of its worker processes, mostly in each epoch."""
    cls = module._BaseDataLoaderIter
    cls.__next__ = functools.wraps(cls.__next__)(timed("data", cls.__next__))
    with_workers = getattr(module, "_MultiProcessingDataLoaderIter", None)
    if with_workers is None:
        return
    inner = with_workers.__init__

    @functools.wraps(inner)
    def starting(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        many = getattr(loader, "num_workers", 0)
        name = f"{run_folder.WORKERS_START}{many} worker process{'es' * (many != 1)}"
        timed("data", inner, name)(self, loader, *args, **kwargs)

    with_workers.__init__ = starting


def saving(module: Any) -> None:
    """Checkpoints, of `torch.save` and of `torch.distributed.checkpoint`."""
    name = "torch.save" if module.__name__ == "torch.serialization" else "torch.distributed.checkpoint.save"
    module.save = functools.wraps(module.save)(timed("checkpoint", module.save, name))


def safetensors(module: Any) -> None:
    """Weights that go to a file."""
    for name in ("save_file", "save_model"):
        inner = getattr(module, name, None)
        if inner is not None:
            setattr(module, name, functools.wraps(inner)(timed("checkpoint", inner, f"safetensors.{name}")))


def profiler(module: Any) -> None:
    """Know of every profiler session of this process: two at once end in lost traces or a crash."""
    session = module.profile
    for name in ("_prepare_trace", "_start_trace"):
        setattr(session, name, SESSIONS.starting(getattr(session, name)))
    session.__exit__ = SESSIONS.ending(session.__exit__)
    for other in ("emit_nvtx", "emit_itt"):
        cls = getattr(module, other, None)
        if cls is not None:
            cls.__enter__ = SESSIONS.starting(cls.__enter__)
            cls.__exit__ = SESSIONS.ending(cls.__exit__)


def deepspeed(module: Any) -> None:
    """DeepSpeed calls torch's optimizer once per parameter group: its own counter tells the steps."""
    cls = module.DeepSpeedEngine
    step = cls.step

    @functools.wraps(step)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(self, "global_steps", 0)
        return outermost(step, (self, *args), kwargs, lambda: getattr(self, "global_steps", 0) > before)

    cls.step = counted


def trainer(module: Any) -> None:
    """transformers' Trainer logs the loss of the step that has just ended, or the mean since it last did.

    A checkpoint of its is more than what `torch.save` writes: the weights go to safetensors. An evaluation is
    named in recorded steps.
    """
    cls = module.Trainer
    if hasattr(cls, "evaluate"):
        cls.evaluate = functools.wraps(cls.evaluate)(_marked(run_folder.EVALUATION, cls.evaluate))
    if hasattr(cls, "_save_checkpoint"):
        saves = timed("checkpoint", cls._save_checkpoint, "Trainer.save_checkpoint")
        cls._save_checkpoint = functools.wraps(cls._save_checkpoint)(saves)
    inner = cls.log

    @functools.wraps(inner)
    def log(self: Any, logs: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(self, logs, *args, **kwargs)
        if CLOCK.on and isinstance(logs, dict):
            CLOCK.logged(logs.get("loss"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return result

    cls.log = log


def _marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose calls are ranges of recorded steps."""

    def called(*args: Any, **kwargs: Any) -> Any:
        if CLOCK.on and CLOCK.window is not None and CLOCK.window.ranges.attached:
            return CLOCK.window.ranges.within(name, function, *args, **kwargs)
        return function(*args, **kwargs)

    return called


def lightning(module: Any) -> None:
    """Lightning returns the loss of each batch: where it accumulates gradients its part of the step's."""
    cls = getattr(module, "_AutomaticOptimization", None)  # of version 2
    if cls is None:
        return
    inner = cls.run
    losses: list[Any] = []

    @functools.wraps(inner)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = CLOCK.step
        result = inner(self, *args, **kwargs)
        if CLOCK.on:
            losses.append(result.get("loss"))
            if CLOCK.step > before:
                CLOCK.parts([loss for loss in losses if loss is not None])
                losses.clear()
        return result

    cls.run = run


def launching(module: Any) -> None:
    """This process may be what starts the ranks: PyTorch tells it how they ended."""
    atexit.unregister(failures.note)
    atexit.register(failures.note)
