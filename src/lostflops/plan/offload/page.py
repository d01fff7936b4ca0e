"""An offload plan as text for a terminal: each tensor class with its decision, and what that would do."""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.errors import shown
from lostflops.plan.pages import grid
from lostflops.units import written

from .class_decisions import PEAK_ERROR, STEP_ERROR, Class, OffloadPlan

MOST = 20  # classes that get a line
LEAST_SHARE = 0.005  # of what is saved, below which a kept class gets none


def page(found: OffloadPlan) -> list[str]:
    """The verdict, the classes, the step and its peak before and after, and what to do with the plan."""
    return list(_page(found))


def _page(found: OffloadPlan) -> Iterator[str]:
    profile = found.profile
    saved, peak = profile.saved_bytes, found.without.peak_bytes
    yield (
        f"{shown(profile.model)} on {shown(profile.device)}: a step saves {written(saved)} in "
        f"{len(profile.rows):,} storages, peak {written(peak)}, {_ms(found.without.step_ns)} ms"
    )
    if found.refused:
        yield f"No plan: {found.refused}."
    else:
        yield f"A plan for {written(found.budget_bytes)}:"
        yield from (f"  {reason}" for reason in found.reasons)
    yield ""
    if found.without.peak_bytes > found.budget_bytes:
        yield from _classes(found)
        yield ""
    if not found.refused:
        yield from _predicted(found)
        yield ""
        yield "Apply it with lostflops.optimize.offload(model, plan=plan); `--json F` writes the plan."
    link = found.link
    yield (
        f"Link card {link.name}: {link.out / 1e9:.3g} GB/s out, {link.into / 1e9:.3g} in, "
        f"{link.latency_ns / 1000:g} us to start a copy; {link.status}."
    )


def _classes(found: OffloadPlan) -> Iterator[str]:
    own = [entry for entry in found.classes if any(row.kept_reason != "parameter" for row in entry.rows)]
    least = LEAST_SHARE * found.profile.saved_bytes
    told = [entry for entry in own if entry.decision != "keep" or entry.bytes >= least][:MOST]
    rows = [
        [shown(entry.name), written(entry.bytes), str(len(entry.rows)), entry.decision, entry.why]
        for entry in told
    ]
    yield from grid(["tensor class", "saved", "storages", "decision", "per step"], rows, {1, 2})
    rest = [entry for entry in own if entry not in told]
    if rest:
        yield f"  and {len(rest)} more of together {written(_together(rest))}"


def _together(entries: list[Class]) -> int:
    return sum(entry.bytes for entry in entries)


def _predicted(found: OffloadPlan) -> Iterator[str]:
    before, after = found.without, found.chosen.played
    rows = [
        ["step ms", _ms(before.step_ns), _ms(after.step_ns), f"within {STEP_ERROR:.0%}"],
        [
            "peak",
            written(before.peak_bytes),
            written(after.peak_bytes),
            f"within {found.peak_error:.0%}" + _guessed(found),
        ],
        ["moved out, in", "", f"{written(after.bytes_out)}, {written(after.bytes_in)}", ""],
    ]
    if after.bytes_out:
        rows.append(
            [
                "hidden out, in",
                "",
                f"{after.hidden_out:.0%}, {after.hidden_in:.0%}",
                f"of {_ms(after.out_ns)} and {_ms(after.in_ns)} ms of copies",
            ]
        )
    if after.compute_ns > before.compute_ns:
        rows.append(["computed again ms", "", _ms(after.compute_ns - before.compute_ns), ""])
    yield from grid(["predicted", "as it is", "with the plan", ""], rows, {1, 2})


def _guessed(found: OffloadPlan) -> str:
    return ", as the profile has no memory over time" if found.peak_error != PEAK_ERROR else ""


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.1f}"
