"""Matrix products in a lower precision."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, cast

Note = Callable[[str], None]


def bf16(module: Any, note: Note) -> None:
    """Forward passes of the outermost module that is trained run under autocast to bf16.

    So do those of a loss, which keeps it in fp32. What comes out is fp32 again, so that a loss that is a
    function is not computed in bf16. A module that prepares data stays as it is: it trains
    nothing, and is given nothing that has a gradient.
    """
    cls = module.Module
    call = cls.__call__
    depth = 0

    @functools.wraps(call)
    def changed(self: Any, *args: Any, **given: Any) -> Any:
        nonlocal depth
        if depth or not self.training or not _has_gradients(self, args, given):
            return call(self, *args, **given)
        torch = sys.modules["torch"]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        note(f"torch.autocast('{device}', dtype=torch.bfloat16)")
        depth += 1
        try:
            with torch.autocast(device, dtype=torch.bfloat16):
                found = call(self, *args, **given)
            return _in_fp32(found, torch.bfloat16)
        finally:
            depth -= 1

    cls.__call__ = changed


def _in_fp32(found: Any, lower: Any) -> Any:
    """Tensors of the lower precision as fp32, in tuples, lists and mappings as well."""
    if getattr(found, "dtype", None) is lower:
        return found.float()
    if type(found) in (tuple, list):
        return type(found)(_in_fp32(one, lower) for one in found)
    if isinstance(found, dict):  # and what is derived from it, as outputs of transformers are
        known = cast("dict[Any, Any]", found)
        for name in list(known):
            known[name] = _in_fp32(known[name], lower)
        return known
    return found


def _has_gradients(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    tensors = (*args, *given.values(), *module.parameters())
    return any(getattr(tensor, "requires_grad", False) is True for tensor in tensors)


def tf32(module: Any, note: Note) -> None:
    """fp32 matrix products may use the tensor cores' TF32."""
    torch = sys.modules["torch"]
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        note("torch.set_float32_matmul_precision('high')")
