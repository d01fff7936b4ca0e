"""What was predicted of a change before it was made, read from the files that `whatif` and `why` write."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lostflops.errors import LostflopsError, NothingThere, shown, suggestion

from .paired import Estimate


class NoPrediction(LostflopsError):
    """A file that predicts nothing, or several things of which none was chosen."""


LONGER = 1.02  # times as long as the steps that are proven, from which recorded steps are told to be longer


@dataclass(frozen=True)
class PredictedChange:
    """By which share of a step a change was said to shorten it."""

    edit: str
    gain: float
    low: float
    high: float
    step: float = 0.0  # that it is a share of, ns; 0 where that is not known

    def most(self, before: float | None) -> float:
        """The largest share that it means of a step of `before` ns, where recorded steps took longer.

        What the profiler adds to a step may lie in what the change removes as in the rest, or all of it in
        the rest: then the step gains as many ns, which is a larger share of it.
        """
        longer = self.step / before if before else 1.0
        return self.gain * longer if longer > LONGER and 0 < self.gain * longer < 1 else self.gain

    def is_inside(self, found: Estimate, before: float | None = None) -> bool:
        """Whether the measured interval holds it, or a share between it and what it means at `most`."""
        if self.gain >= 1:
            return False
        return found.low <= math.log1p(-self.gain) and math.log1p(-self.most(before)) <= found.high

    def realised(self, found: Estimate) -> tuple[float, float, float] | None:
        """Measured over predicted, with the ends of the interval; None of a predicted gain of nothing."""
        if not self.gain:
            return None
        shares = (-math.expm1(x) / self.gain for x in (found.difference, found.low, found.high))
        middle, one, other = shares
        return middle, min(one, other), max(one, other)


def read(path: Path, edit: str = "") -> PredictedChange:
    """The prediction of `edit` in a file of `whatif --json` or `why --json`; unnamed, the only one in it."""
    try:
        document: Any = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NothingThere(path, "write one: `lostflops whatif RUN EDIT --json F`.") from error
    except OSError as error:
        raise NoPrediction(f"'{shown(path)}' could not be read: {error.strerror}.") from error
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise NoPrediction(
            f"'{shown(path)}' holds no predictions.",
            "write one with `lostflops whatif RUN EDIT --json F`, or `lostflops why RUN --json F`.",
        )
    try:
        found = {p.edit: p for p in _predictions(cast("Mapping[str, Any]", document))}
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError):
        found = {}
    if not found:
        raise NoPrediction(
            f"'{shown(path)}' predicts no gain.",
            "ask `lostflops whatif RUN EDIT --json F` for the change; its page says why when it cannot.",
        )
    if edit:
        if edit not in found:
            raise NoPrediction(
                f"'{shown(path)}' does not predict '{shown(edit)}'.{suggestion(edit, found)}",
                f"it predicts {', '.join(shown(name) for name in found)}.",
            )
        return found[edit]
    if len(found) > 1:
        raise NoPrediction(
            f"'{shown(path)}' predicts {len(found)} changes.",
            f"name the one that you made with `--edit`: {', '.join(shown(name) for name in found)}.",
        )
    return next(iter(found.values()))


def _predictions(document: Mapping[str, Any]) -> Iterator[PredictedChange]:
    if "edits" in document:
        measured = document["replay"]["measured_ns"]
        for made in document["edits"]:
            if made["predicted_ns"] is not None:
                ns = (made["predicted_ns"], made["high_ns"], made["low_ns"])
                gain, low, high = (1 - _share(n, measured) for n in ns)
                yield PredictedChange(str(made["edit"]), gain, low, high, float(measured))
        return
    step = _mean_step(document)
    for finding in document["findings"]:
        told = finding.get("predicted")
        if told and finding["edit"] and not told["refused"]:
            ns = (told["ns"], told["low_ns"], told["high_ns"])
            gain, low, high = (_share(n, step) for n in ns)
            yield PredictedChange(str(finding["edit"]), gain, low, high, step)


def _share(ns: Any, of: float) -> float:
    share = float(ns) / of
    if not math.isfinite(share):
        raise ValueError(ns)
    return share


def _mean_step(page: Mapping[str, Any]) -> float:
    """The mean step of the page: all of its ledger over the number of its steps."""
    rows = page["ledger"]
    return sum(row["ns"] for row in rows) / len({(row["rank"], row["step"]) for row in rows})
