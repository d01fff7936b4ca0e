"""Whether a layer computes the same again: what its first forward saves is compared with the recomputation.

torch compares shapes and dtypes. A layer that reads a count of calls kept elsewhere, or draws random numbers
from an unknown source, would get wrong gradients without an error. Kernels that add up in
another order each time are none of that: what differs by rounding only is counted, and told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch.utils import checkpoint as torch_checkpointing
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore

from lostflops.optimize.activations.checksum import fingerprint, sketch
from lostflops.optimize.activations.unwritten_saves import ENOUGH
from lostflops.optimize.refused import Refused

_C: Any = cast("Any", torch)._C
_CALLS = itertools.count()
ROUNDINGS = 8  # of the dtype, that sketches may differ by, relative to the norm
_known: Any = cast("Any", torch_checkpointing)._allowed_determinism_checks_to_fns


class Repeats:
    """Compares until a layer was compared in one backward, and again under other modes of torch around its
    forward, which are not there when it is computed again. `differs` is called before a difference is
    refused."""

    def __init__(self, differs: Callable[[], None]) -> None:
        self._differs = differs
        self._done: set[tuple[str, tuple[str, ...]]] = set()  # names of layers, and of modes
        self.compared = 0
        self.rounded: set[str] = set()  # names of layers

    @contextmanager
    def comparing(self, name: str, layer: torch.nn.Module) -> Generator[dict[str, Any]]:
        """Arguments for torch's checkpoint, with which it compares what it saves inside; none when that is
        done."""
        modes = _modes()
        if (name, modes) in self._done:
            yield {}
            return
        key = f"lostflops: {name}, {id(self)}, {next(_CALLS)}"  # threads run a layer at the same time
        recurrent = any(isinstance(module, torch.nn.RNNBase) for module in layer.modules())
        _known[key] = partial(_Seen, self, name, modes, recurrent)
        try:
            yield {"determinism_check": key}
        finally:
            del _known[key]

    def same(self, name: str, modes: tuple[str, ...], one: _Seen, other: _Seen) -> bool:
        if one.like != other.like:
            self._differs()
            raise Refused(
                f"'{name}' saved {one} in its forward, and {other} when it was computed again",
                "it does something else the second time, or makes nested tensors, whose lengths are new each "
                "time; do not checkpoint it: layers=...",
            )
        self.compared += 1
        self._done.add((name, modes))
        if one.sums is None or other.sums is None or torch.equal(one.sums, other.sums):
            return True
        difference = (one.rough - other.rough).abs().max()
        if not difference <= ROUNDINGS * one.rounding * torch.maximum(one.rough[0], other.rough[0]):
            self._differs()
            why = (
                f"its forward ran under {', '.join(modes)}, which its backward has to as well; or"
                if modes
                else "it reads what changes from call to call (a count in an object or another module), or "
                "draws random numbers from an unknown source;"
            )
            raise Refused(
                f"'{name}' computed something else the second time: the gradients of this backward are wrong",
                f"{why} do not checkpoint it: layers=...",
            )
        self.rounded.add(name)
        return True


def _modes() -> tuple[str, ...]:
    """Of torch's functions and of its dispatcher, that are entered; torch itself brings back a device."""
    functions, dispatch = _C._len_torch_function_stack(), _C._len_torch_dispatch_stack()
    if not functions and not dispatch:
        return ()
    found = [_C._get_function_stack_at(at) for at in range(functions)]
    found += [_C._get_dispatch_stack_at(at) for at in range(dispatch)]
    return tuple(type(mode).__name__ for mode in found if not isinstance(mode, DeviceContext))


class AsRefusals:
    """Around the forward within a recomputation, which torch breaks off when all is there: what torch would
    say of one that ends by itself, or that finds nothing of what was kept, in our words."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            if getattr(torch_checkpointing, "_enable_checkpoint_early_stop", None) is not False:
                raise _something_else(self._name, "saves fewer tensors for its backward")
        elif isinstance(error, RuntimeError):
            if "backward an extra time" in str(error):
                raise Refused(
                    f"a second backward goes through '{self._name}', and what was kept of it is gone since "
                    "the first",
                    "keep=() computes all of it again, as often as is asked for",
                ) from error
            if "encountered during backward but not found" in str(error):
                raise _something_else(self._name, "runs other operators") from error
        elif isinstance(error, Exception) and not isinstance(error, ENOUGH):
            what = f"raises {type(error).__name__}{f' ({error})' if str(error) else ''}"
            raise _something_else(self._name, what) from error


def _something_else(name: str, what: str) -> Refused:
    return Refused(
        f"'{name}' {what} when it is computed again, and did not in its forward",
        "it does something else the second time, by a condition, an iterator or a cache outside of it; do "
        "not checkpoint it: layers=...",
    )


class _Seen:
    """What is kept of a saved tensor until it is computed again. torch asks whether two are equal."""

    def __init__(
        self,
        repeats: Repeats,
        name: str,
        modes: tuple[str, ...],
        recurrent: bool,
        tensor: torch.Tensor,
    ) -> None:
        self._repeats, self._name, self._modes = repeats, name, modes
        self.like = tensor.shape, tensor.dtype, tensor.device
        self.sums: torch.Tensor | None = None
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return
        if recurrent and tensor.dtype == torch.uint8 and tensor.dim() == 1:
            return  # oneDNN's and cuDNN's memory for their own backward, of which they do not write each byte
        if tensor.is_quantized or cast("Any", tensor)._is_zerotensor() or not tensor.numel():
            return
        with _disable_current_modes(), torch.no_grad():  # those of selective checkpointing would count these
            plain = tensor.detach().resolve_conj().resolve_neg()
            # By its own order of dimensions, which depends on strides: they are those of the first forward.
            self.sums = fingerprint(plain).sums
            self.rough = sketch(plain)
        of_floats = tensor.is_floating_point() or tensor.is_complex()
        self.rounding = torch.finfo(tensor.dtype).eps if of_floats else 1e-3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seen) and self._repeats.same(self._name, self._modes, self, other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        shape, dtype, _ = self.like
        return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
