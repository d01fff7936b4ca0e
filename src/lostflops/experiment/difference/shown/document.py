"""A difference as one JSON document; `docs/reference/json.md` describes every key."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..noise import Spread
from ..pieces import LEVELS
from ..side import Side
from ..waterfall import Moved

if TYPE_CHECKING:
    from ..compare import Difference


def document(found: Difference) -> dict[str, Any]:
    """All of it; times are ns per step, and changes of `rows` and of `parts` add up to that of the step."""
    known, step = found.is_accounted, found.waterfall.step
    return {
        "before_ns": step.before_ns if known else None,
        "after_ns": step.after_ns if known else None,
        "change_ns": step.ns if known else None,
        "noise_ns": step.noise_ns,
        "verdict": found.verdict,
        "sentence": found.sentence,
        "comparable": found.comparable,
        "obstacles": list(found.obstacles),
        "notes": list(found.notes),
        "before": _side(found.before),
        "after": _side(found.after),
        "rows": [
            {"account": change.path[0], **_amounts(change), "noise_ns": change.noise_ns}
            for change in found.waterfall.accounts
        ],
        "parts": [
            {"account": change.path[0]}
            | {level: name or None for level, name in zip(LEVELS, change.path[1:], strict=True)}
            | _amounts(change)
            | {"before_calls": change.before_calls, "after_calls": change.after_calls}
            for change in found.waterfall.leaves()
        ],
        "modules": [{"module": change.path[0] or None, **_amounts(change)} for change in found.modules],
        "apart": None if found.apart is None else asdict(found.apart),
        "ranks": [
            {
                "rank": one.rank,
                "before_ns": one.before_ns,
                "after_ns": one.after_ns,
                "change_ns": one.ns,
                "account": one.account or None,
                "account_change_ns": one.account_ns,
            }
            for one in found.ranks
        ],
        "steps": [
            {
                "step": one.step,
                "before_ns": one.before_ns,
                "after_ns": one.after_ns,
                "change_ns": one.after_ns - one.before_ns,
            }
            for one in found.steps
        ],
        "mismatches": [
            {"name": one.name, "before": one.before, "after": one.after} for one in found.mismatches
        ],
    }


def _amounts(change: Moved) -> dict[str, int]:
    return {"before_ns": change.before_ns, "after_ns": change.after_ns, "change_ns": change.ns}


def _side(side: Side) -> dict[str, Any]:
    """What was recorded; no file names, since profilers write the host's name into them."""
    spread = Spread.of(list(side.lengths.values())) if side.lengths else None
    return {
        "ranks": list(side.run.ranks),
        "world_size": side.run.world_size,
        "gpu": side.run.gpu,
        "device_kind": side.run.device_kind,
        "step_source": side.run.step_source,
        "num_steps": len(side.lengths),
        "num_windows": side.num_windows,
        "deviation_ns": None if spread is None else spread.deviation_ns,
        "missing": side.missing or None,
        "sources": list(side.run.sources),
    }
