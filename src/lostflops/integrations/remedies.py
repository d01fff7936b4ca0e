"""Which remedies a framework's callback turns on, in which order, and which do not go together.

Each is looked up in `lostflops.optimize` by name and entered like a context. The order is fixed: adapters
first, because they decide what is trained; then FP8, which swaps layers; then what wraps layers
(checkpointing); then what moves their weights (frozen weights); offloading of what is saved comes last, so
that it sees what all the others save.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, cast

from lostflops import optimize
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import Report

# Name of a callback's argument: the function in `lostflops.optimize`. In the order of composition.
FUNCTIONS = {
    "fp8": "to_fp8",
    "checkpoint": "checkpoint",
    "stream_frozen": "stream_frozen",
    "offload": "offload",
}
LOADER = "tune_loader"

# What is no business of a callback, and what to do instead.
_PRECISION = "the framework casts and scales by itself: use its setting (bf16=True, precision='bf16-mixed')"
ELSEWHERE = {
    "lora": "adapters decide what the optimizer gets, and that is made before a callback is asked: "
    "call optimize.lora(model) before you hand the model over; the remedies here come after it",
    "optimizer_offload": "it is for an optimizer, and the framework makes that: call "
    "optimize.optimizer_offload(optimizer) when it has, in a callback's on_train_begin",
    "stream_weights": "that is for inference; for training there is stream_frozen",
    **dict.fromkeys(("to_bf16", "to_fp16", "autocast", "bf16", "fp16"), _PRECISION),
}


def checked(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The remedies that are on, with their arguments, in the order of composition. Raises Refused."""
    on: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        if name in ELSEWHERE:
            raise Refused(f"'{name}' cannot be turned on here", ELSEWHERE[name])
        if name not in FUNCTIONS and name != LOADER:
            known = ", ".join([*FUNCTIONS, LOADER])
            raise Refused(f"there is no remedy '{name}' to turn on here", f"there are: {known}")
        if value is None or value is False:
            continue
        if value is not True and not isinstance(value, Mapping):
            raise Refused(
                f"{name}={value!r} says nothing",
                f"give the arguments as a dictionary, or {name}=True for none",
            )
        on[name] = {} if value is True else dict(cast("Mapping[str, Any]", value))
    return {name: on[name] for name in (*FUNCTIONS, LOADER) if name in on}


class Remedies:
    """The remedies of one training: `enter` them on its model, `leave` them in turn, and what they report."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.on = checked(given)
        self._entered: dict[str, Any] = {}
        self._stack = ExitStack()

    def enter(self, model: Any) -> None:
        """All or none: when one is refused, those before it are undone."""
        entered: dict[str, Any] = {}
        partitioned = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
        if partitioned and "stream_frozen" in self.on:
            raise Refused(
                "DeepSpeed's ZeRO-3 keeps each weight in parts, and none is here to be streamed",
                "use offload_param in DeepSpeed's settings",
            )
        with ExitStack() as stack:
            for name, arguments in self.on.items():
                if name != LOADER:
                    remedy = getattr(optimize, FUNCTIONS[name])(model, **arguments)
                    entered[name] = stack.enter_context(remedy)
            self._stack, self._entered = stack.pop_all(), entered

    def leave(self) -> dict[str, Any]:
        """Undo them, last first. Their reports, by name."""
        reports: dict[str, Any] = {}
        for name, entered in self._entered.items():
            try:
                reports[name] = plain(entered.report())
            except Exception as error:  # a report is no reason to lose the training
                reports[name] = {"error": f"{type(error).__name__}: {error}"}
        self._entered = {}
        self._stack.close()
        return reports


def plain(report: Any) -> Any:
    """A report as JSON, with its schema and what is derived from its figures; what is no report as text."""
    if isinstance(report, Report):
        return report.to_json()
    return cast("Any", report) if isinstance(report, Mapping) else str(report)
