"""16-bit training, one call for each way: bf16 weights, bf16 autocast, or fp16 with its loss scaled.

    optimize.to_bf16(model)                        # half the bytes of weights, gradients and activations
    optimize.autocast(model)                       # fp32 weights, products in bf16
    scaled = optimize.to_fp16(model, optimizer, scheduler=scheduler, max_norm=1.0)
    scaled.backward(loss)
    scaled.step()                                  # unscales, clips, and steps both or neither

bf16 has the range of fp32 and needs no scaling. fp16 has three bits more of accuracy and overflows at 65,504,
so its loss is scaled up, and steps whose gradients overflow are skipped.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakMethod

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lostflops.optimize.amounts import written
from lostflops.optimize.forwards import Forwards
from lostflops.optimize.model_parts import ends_like, named, refuse_wrapped, wrapper_in
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy, TextReport
from lostflops.optimize.training.other_dtypes import watch
from lostflops.optimize.training.scaled_gradients import ScaledGradients, with_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARM_UP = 100  # steps in which the scale is still being found
CHURN = 0.01  # skipped steps of those after it


def _scaler_of(model: torch.nn.Module) -> Any:
    """Makes a scaler. Under FSDP1 a part of the gradients is on each rank, and all skip a step or none."""
    sharded = wrapper_in(model, "FSDP1")
    if sharded is None:
        return cast("Any", torch.amp).GradScaler
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return functools.partial(cast("Any", ShardedGradScaler), process_group=cast("Any", sharded).process_group)


def to_bf16(model: torch.nn.Module, keep: str | Sequence[str] = ("*inv_freq",)) -> Bf16:
    """Weights and buffers become bf16, in place: make the optimizer afterwards. `undo()` gives back the
    dtypes.

    What stays as it is: whatever is not fp32, buffers and parameters that `keep` names (by default the rotary
    frequencies: rounded to 8 bits they turn late positions by whole radians), and BatchNorm with its
    statistics. Refuses when gradients are there already, for they would be of another dtype than their
    weights. An optimizer's step by gradients of a forward from before, or after `undo()` by bf16 states, is
    refused.
    """
    return Bf16(model, (keep,) if isinstance(keep, str) else keep)


class Bf16(AppliedRemedy):
    """A model whose fp32 weights are bf16 now. `undo()` makes them fp32 again; what was rounded stays
    rounded."""

    def __init__(self, model: torch.nn.Module, keep: Sequence[str]) -> None:
        refuse_wrapped(
            model,
            *("DDP", "FSDP1", "FSDP2"),
            breaks="keeps memory of its own for weights or gradients, which stays fp32",
            instead="call optimize.to_bf16 first, then wrap the model",
        )
        held = next(
            (name for name, parameter in model.named_parameters() if parameter.grad is not None), None
        )
        if held is not None:
            raise Refused(f"'{held}' has a gradient", "optimizer.zero_grad(set_to_none=True) first")
        self.model = model
        self.kept: list[str] = []
        self._converted: list[torch.Tensor] = []
        self._places: list[tuple[dict[str, Any], str]] = []  # of each, in its module
        apart = {
            f"{name}.{tensor_name}"
            for name, module in named(model)
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)  # pyright: ignore[reportPrivateUsage]
            for tensor_name in (*module.__dict__["_parameters"], *module.__dict__["_buffers"])
        }
        seen: set[int] = set()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dtype != torch.float32 or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if name in apart or any(ends_like(name, pattern) for pattern in keep):
                self.kept.append(name)
            else:
                self._converted.append(tensor)
        converted = {id(tensor) for tensor in self._converted}
        for _, module in named(model):
            for kind in ("_parameters", "_buffers"):
                held = module.__dict__[kind]
                self._places += [(held, key) for key, tensor in held.items() if id(tensor) in converted]
        if not self._converted:
            raise Refused("the model has no fp32 weights", "it may be in bf16 already: see its dtypes")
        if parted := _parted(model, converted):
            raise Refused(
                f"'{parted[0]}' and '{parted[1]}' are two tensors in the same memory, and each would then "
                "have its own: what is written to one would not reach the other",
                "tie them as one parameter (b.weight = a.weight), or optimize.autocast(model)",
            )
        for tensor in self._converted:
            tensor.data = tensor.data.to(torch.bfloat16)
        watch(self._converted)
        self._tensors, self._bytes = len(self._converted), sum(each.nbytes for each in self._converted)

    def _take_back(self) -> None:
        """fp32 again, with the values that they have now. Gradients are dropped: they are bf16."""
        for held, key in self._places:
            found = held.get(key)
            if found is None or found.dtype != torch.bfloat16:
                continue
            if found.is_leaf:  # maybe another one than at first: a forward, or a state dict, bound it anew
                self._converted.append(found)
            else:
                held[key] = found.to(torch.float32)
        for tensor in self._converted:
            if tensor.dtype == torch.bfloat16:
                tensor.grad = None
                tensor.data = tensor.data.to(torch.float32)
        watch(self._converted, undone=True)
        self._converted.clear()
        self._places.clear()

    def report(self) -> TextReport:
        """Bytes before and after, what was left out, and what it means for the optimizer."""
        now = self._bytes
        lines = [f"bf16           {written(2 * now)} of fp32 weights and buffers are {written(now)} now"]
        if self.kept:
            more = f" and {len(self.kept) - 3} more" if len(self.kept) > 3 else ""
            lines.append(f"kept in fp32   {', '.join(self.kept[:3])}{more}")
        lines.append(
            "updates        an optimizer that keeps no fp32 copy loses those smaller than about 1/256 of a"
            " weight; optimize.autocast keeps fp32 weights"
        )
        figures = {"converted_tensors": self._tensors, "bytes_now": now, "kept_in_fp32": self.kept}
        return TextReport("bf16", tuple(lines), figures)


def _parted(model: torch.nn.Module, converted: set[int]) -> tuple[str, str] | None:
    """Names of two tensors in overlapping memory of which one is converted at least."""
    every = dict((*model.named_parameters(), *model.named_buffers()))
    spans: list[tuple[int, int, int, str]] = []
    for name, tensor in every.items():
        if type(tensor.data) is not torch.Tensor or tensor.layout != torch.strided or not tensor.numel():
            continue
        if begins := tensor.data_ptr():  # none on "meta"
            reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            spans.append((begins, begins + (reach + 1) * tensor.itemsize, id(tensor), name))
    spans.sort(key=lambda span: span[:2])
    for number, (_, end, one, name) in enumerate(spans):
        for begins, _, other, second in spans[number + 1 :]:
            if begins >= end:
                break
            if one != other and converted & {one, other}:
                return name, second
    return None


def autocast(model: torch.nn.Module, dtype: torch.dtype = torch.bfloat16) -> Autocast:
    """The model's forward runs under `torch.autocast`: fp32 weights, products in 16 bits; until `undo()`.

    The loss belongs inside the model's forward, as with Hugging Face's labels, or in fp32: outputs are what
    autocast leaves them, and not copied to fp32. Refuses fp16 (that needs its loss scaled: `to_fp16`) and a
    model whose weights are 16-bit already.
    """
    if dtype == torch.float16:
        raise Refused("fp16 needs its loss scaled", "optimize.to_fp16(model, optimizer), or torch.bfloat16")
    return Autocast(model, dtype)


SAID = "_lostflops_autocast"


class _NotInFiles:
    """Among the model's attributes: says that a file of the model has its own forward."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = str(dtype).removeprefix("torch.")
        self.active = True

    def __deepcopy__(self, memo: dict[int, Any]) -> _NotInFiles:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        warnings.warn(
            f"the model computes in {self.dtype} by optimize, and what is saved or sent of it does not: "
            "apply it again to what is loaded",
            stacklevel=2,
        )
        return str, ()


class Autocast(AppliedRemedy):
    """A model that computes in 16 bits, until `undo()` or the end of the `with` block."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        if dtype not in (torch.bfloat16, torch.float16):
            raise Refused(f"autocast to {dtype} is none", "torch.bfloat16; optimize.to_fp16 for fp16")
        fp32 = sum(parameter.numel() for parameter in model.parameters() if parameter.dtype == torch.float32)
        if not fp32:
            raise Refused(
                "the model has no fp32 weights to cast", "leave autocast out: it computes in their dtype"
            )
        said = model.__dict__.get(SAID)
        if isinstance(said, _NotInFiles) and said.active:
            raise Refused(
                f"the model computes in {said.dtype} by optimize already, and would go on to",
                "undo that first",
            )
        self.model = model
        self.dtype = dtype
        self._weights = fp32
        self._forwards = Forwards()
        self._forwards.replace(model, self._run)
        self._said = model.__dict__[SAID] = _NotInFiles(dtype)

    @property
    def device_type(self) -> str:
        """Of the device that the model is on now: it may move, or be made on "meta" first."""
        return next(self.model.parameters()).device.type

    def _run(self, forward: Callable[..., Any], model: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device_type, self.dtype):
            return forward(model, *args, **kwargs)

    def _take_back(self) -> None:
        self._forwards.restore()
        self._said.active = False
        self.model.__dict__.pop(SAID, None)

    def report(self) -> TextReport:
        kind, copies = str(self.dtype).removeprefix("torch."), 2 * self._weights
        lines = (
            f"autocast       {kind}: products, and most of what they save",
            f"weights        {self._weights:,} stay fp32, and so do gradients and optimizer states",
            f"copies         a {kind} copy of each, {written(copies)}, until its backward",
        )
        figures = {"dtype": kind, "fp32_parameters": self._weights, "cast_bytes": copies}
        return TextReport("autocast", lines, figures)


def to_fp16(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    max_norm: float | None = None,
    scale: float = 65536.0,
    growth_interval: int = 2000,
) -> Fp16:
    """fp16 autocast and a scaled loss: call `backward(loss)` and `step()` of what this returns.

    Weights stay fp32, since gradients in fp16 cannot be unscaled. `scheduler.step()` is called with the
    optimizer and skipped with it; `max_norm` clips after unscaling. `scale` is where the search begins: it is
    halved at every overflow, and doubled after `growth_interval` steps without one.
    """
    half = next((name for name, p in model.named_parameters() if p.dtype == torch.float16), None)
    if half is not None:
        raise Refused(
            f"'{half}' is fp16, and so would its gradient be", "keep the weights in fp32: model.float() first"
        )
    return Fp16(model, optimizer, scheduler, max_norm, scale, growth_interval)


class Fp16(AppliedRemedy):
    """fp16 training of one model with one optimizer. Gradients may be accumulated: several `backward`, one
    `step`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        max_norm: float | None,
        scale: float,
        growth_interval: int,
    ) -> None:
        sharded = wrapper_in(model, "FSDP1")
        if max_norm is not None and sharded is not None and sharded is not model:
            raise Refused(
                "FSDP1 shards a part of the model only, and knows the norm of that part's gradients alone",
                "wrap the whole model with FullyShardedDataParallel, or leave max_norm out",
            )
        self._autocast = Autocast(model, torch.float16)
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.max_norm = max_norm
        self.scaler: Any = _scaler_of(model)(
            self._autocast.device_type, init_scale=scale, growth_interval=growth_interval
        )
        self._gradients = ScaledGradients(model, optimizer, self.scaler)
        self.scale = scale
        self.lowest_scale = scale
        self.steps = 0  # asked for, skipped ones included
        self.skipped: list[int] = []  # their numbers
        watch = WeakMethod(self._before_another_step)

        def before_a_step(*given: Any) -> None:  # of all optimizers: it is not to keep the model
            if (there := watch()) is not None:
                there(*given)

        self._watching = (
            optimizer.register_step_pre_hook(self._before_step),
            register_optimizer_step_pre_hook(before_a_step),
        )

    def _take_back(self) -> None:
        """The model computes in fp32 again. Gradients of a step to come are unscaled, or dropped if they
        overflowed."""
        for watching in self._watching:
            watching.remove()
        self._autocast.undo()
        self._gradients.release()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """After `unscale_` it may step; a fused one unscales by itself, with a scale from the scaler."""
        if hasattr(optimizer, "grad_scale"):
            return
        if any(each is not None for each in (*args[1:], kwargs.get("closure"))):
            raise Refused(
                "a closure computes gradients within optimizer.step(), which steps by them before they are "
                "unscaled",
                "backward(loss) and step() of what to_fp16 returned, without a closure",
            )
        if self._gradients.scaled_of(optimizer):
            raise Refused(
                f"optimizer.step() would step by gradients that are {self.scaler.get_scale():,.0f} times too "
                "large",
                "call step() of what to_fp16 returned instead: it unscales them, and steps the scheduler",
            )
        if not self._gradients.any and with_gradients(optimizer):
            raise Refused(
                "no loss was scaled since the last step, and fp16 loses gradients below 6e-8 without a word",
                "backward(loss) and step() of what to_fp16 returned; or undo() first",
            )

    def _before_another_step(self, optimizer: Any, *_: Any) -> None:
        if optimizer is self.optimizer or hasattr(optimizer, "grad_scale"):
            return
        if self._gradients.scaled_of(optimizer):
            raise Refused(
                f"another optimizer ({type(optimizer).__name__}) would step by gradients that are "
                f"{self.scaler.get_scale():,.0f} times too large",
                "call step() of what to_fp16 returned first: it unscales all gradients of the model",
            )

    def backward(self, loss: torch.Tensor) -> None:
        """Of the scaled loss. Divide by the number of microbatches yourself."""
        first = not self._gradients.any
        try:
            with self._gradients.backward():
                self.scaler.scale(loss).backward()
        except BaseException:
            if first:
                self._gradients.forget_if_none()
            raise

    def step(self) -> bool:
        """The optimizer's step and the scheduler's, gradients unscaled and clipped first. False when an
        overflow made both be skipped. Gradients are left to `zero_grad`."""
        if not self._gradients.any:
            raise Refused(
                "there has been no backward(loss) since the last step", "scaled.backward(loss) first"
            )
        sharded = wrapper_in(self.model, "FSDP1")
        if sharded is None and not with_gradients(self.optimizer):  # a step without effect, as it is without
            self._gradients.settle()
            self.optimizer.step()
            return self._stepped()
        # Clipping sees true gradients, not ones that are larger by the scale.
        if self.scaler._per_optimizer_states[id(self.optimizer)]["stage"].name == "READY":
            self.scaler.unscale_(self.optimizer)
        if self.max_norm is not None and sharded is not None:
            cast("Any", self.model).clip_grad_norm_(self.max_norm)  # by the norm of all ranks' parts
        elif self.max_norm is not None:
            groups = self.optimizer.param_groups
            parameters = [parameter for group in groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self._stepped()

    def _stepped(self) -> bool:
        before, self.scale = self.scale, self.scaler.get_scale()
        self.lowest_scale = min(self.lowest_scale, self.scale)
        self.steps += 1
        # It falls at an overflow, and only then; at 0, where a loss that is not finite drives it, it stays.
        if self.scale < before or not before:
            self.skipped.append(self.steps)
            return False
        if self.scheduler is not None:
            self.scheduler.step()
        return True

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the scale, and what has been counted."""
        return {
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
            "skipped": list(self.skipped),
            "lowest_scale": self.lowest_scale,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave. Refuses while gradients are there that have the scale of now."""
        if self._gradients.scaled_of(self.optimizer):
            raise Refused(
                "the gradients that are there are scaled, and loading changes the scale",
                "step(), or optimizer.zero_grad(), and load then",
            )
        self._gradients.settle()
        self.scaler.load_state_dict(state["scaler"])
        self.steps, self.skipped = state["steps"], list(state["skipped"])
        self.scale = self.scaler.get_scale()
        self.lowest_scale = min(state.get("lowest_scale", self.scale), self.scale)

    @property
    def churn(self) -> float | None:
        """Share of steps skipped after the warm-up of 100 steps; None before its end."""
        late = self.steps - WARM_UP
        return sum(number > WARM_UP for number in self.skipped) / late if late > 0 else None

    def report(self) -> TextReport:
        """Scale and skipped steps, and advice when there are too many of them."""
        early = sum(number <= WARM_UP for number in self.skipped)
        lines = [
            f"fp16           loss scale {self.scale:,.0f}, lowest so far {self.lowest_scale:,.0f}",
            f"skipped        {len(self.skipped)} of {self.steps} steps, {early} in the first {WARM_UP}",
        ]
        if self.churn is not None and self.churn > CHURN:
            lines.append(
                f"CHURN          {100 * self.churn:.1f} of 100 steps are skipped after the warm-up: gradients"
                " outgrow fp16. Use bf16 (optimize.autocast), or a lower learning rate"
            )
        if self.scale < 1:
            lines.append("SCALE < 1      the loss itself overflows: look for it in the forward")
        figures = {
            "scale": self.scale,
            "lowest_scale": self.lowest_scale,
            "steps": self.steps,
            "skipped_steps": self.skipped,
            "churn": self.churn,
        }
        return TextReport("fp16", tuple(lines), figures)
