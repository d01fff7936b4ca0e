"""The first page as one JSON document, for programs. `docs/reference/json.md` describes every key."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import polars as pl

from .first_page.page import Page

SCHEMA = 1
MOST_ROWS = 1000  # of each recipe's table


def document(page: Page) -> bytes:
    """The document as UTF-8 text, ending in a newline. It holds no NaN or infinity: those are null."""
    run = page.run
    parts: dict[str, Any] = {
        "schema": SCHEMA,
        "lostflops": page.lostflops,
        "run": {
            "clock": run.clock,
            "clock_origin_ns": run.clock_origin_ns,
            "clock_offsets_ns": {str(rank): ns for rank, ns in run.clock_offsets.items()},
            "clock_error_ns": run.clock_error_ns,
            "ranks": list(run.ranks),
            "world_size": run.world_size,
            "device_kind": run.device_kind,
            "gpu": run.gpu,
            "step_source": run.step_source,
            "selected_steps": list(run.selected_steps) if run.selected_steps else None,
            "num_events": run.num_events,
            "sources": list(run.sources),
            "versions": run.versions,
        },
        "verdict": page.verdict,
        "notes": list(page.notes),
        "facts": [
            {"name": f.name, "value": f.value, "unit": f.unit, "shown": f.shown, "basis": f.basis}
            for f in page.facts.numbers
        ],
        "top": [
            {"name": top.name, "ns_per_step": top.ns_per_step, "share": top.share} for top in page.facts.top
        ],
        "mean_step": _mean_step(page),
        "steps": rows(_steps(page)),
        "ledger": rows(page.ledger.select("rank", "step", "account", "ns")),
        "findings": [
            {
                "name": finding.name,
                "claim": finding.claim,
                "cost_per_step": finding.size,
                "ns_per_step": finding.ns_per_step,
                "gain": finding.gain,
                "contributors": list(finding.contributors),
                "accounts": list(finding.accounts),
                "rank": finding.rank,
                "evidence": list(finding.evidence),
                "next": finding.next,
                "remedies": list(finding.remedies or ()),
                "edit": finding.edit,
                "predicted": None if finding.predicted is None else asdict(finding.predicted),
                "recipe": finding.recipe,
                "doubt": finding.doubt,
            }
            for finding in page.findings
        ],
        "skipped": [
            {"recipe": skipped.recipe, "reason": page.nameless(skipped.reason)} for skipped in page.skipped
        ],
        "quality": [
            {
                "rank": fact.rank,
                "name": fact.name,
                "count": fact.count,
                "text": page.nameless(fact.meaning),
                "level": fact.level,
            }
            for fact in page.quality
        ],
        "recipes": {
            answer.recipe.name: {
                "question": answer.recipe.question,
                "num_rows": answer.table.height,
                "rows": rows(answer.table.head(MOST_ROWS)),
            }
            for answer in page.answers
            if answer.recipe.name != "step_ledger"
        },
    }
    return msgspec.json.encode(parts) + b"\n"


def _mean_step(page: Page) -> dict[str, Any] | None:
    """Sums over the steps that count, ns: divided by their number they are the step that a page shows."""
    spent = page.budget
    if spent is None:
        return None
    accounts = {line.account: line.ns for line in spent.lines if line.depth or not spent.parts(line.account)}
    return {
        "steps": spent.num_windows,
        "ns": round(spent.mean),
        "sum_ns": spent.ns,
        "sum_ns_by_account": accounts,
    }


def _steps(page: Page) -> pl.DataFrame:
    """All steps, with whether each counts and why not."""
    counts = page.counted.select("rank", "step", counts=pl.lit(True))
    return page.steps.join(counts, on=["rank", "step"], how="left", maintain_order="left").select(
        "rank", "step", "start", "end", "source", "complete", "left_out", pl.col("counts").fill_null(False)
    )


def rows(table: pl.DataFrame) -> msgspec.Raw:
    """The rows of a table as a JSON array of objects. Polars writes what is not finite as null."""
    # Of a table in several chunks Polars may write the first one only.
    return msgspec.Raw(table.rechunk().write_json().encode())
