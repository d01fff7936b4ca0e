"""The table of all records in a folder, as Markdown. Each section's file knows how to show its own."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any


def page(results: Path) -> str:
    from run import SECTIONS

    parts: list[str] = []
    for name in SECTIONS:
        try:
            record = json.loads((results / f"{name}.json").read_text())
        except (OSError, ValueError):
            continue
        section = import_module(f"section_{name}")
        parts.append(f"## {section.TITLE}\n\n{' '.join((section.__doc__ or '').split())}")
        if "failed" in record:
            last = (record["failed"].strip().splitlines() or ["without a word"])[-1]
            before = ", with what it had measured by then" if "rows" in record else ""
            parts.append(f"Failed: `{last}`{before}")
        if "rows" in record:
            try:
                parts.append(section.page(record["rows"]))
            except (KeyError, TypeError, ValueError, IndexError):
                if "failed" not in record:
                    parts.append("Its record is of another version of this benchmark.")
        parts.append(f"*{about(record)}*")
    return "\n\n".join(["# Remedies, measured", HOW, *parts]) + "\n"


HOW = (
    "Written by `benchmarks/gpu/run.py` from the records beside it, which hold every single time. What is "
    "compared took turns in one process; times are medians."
)


def about(record: dict[str, Any]) -> str:
    known = record["about"]
    where = known["gpu"] or "a CPU that plays the GPU: only shows that the section runs"
    versions = ", ".join(
        f"{name} {known[name]}"
        for name in ("lostflops", "torch", "transformers", "peft", "torchao", "trl")
        if known[name]
    )
    return (
        f"{record['measured']}, {where}, {known['cores']} cores of {known['machine']}, "
        f"model {known['size']}, {versions}; {record['took_seconds']:.0f} s."
    )


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Numbers to the right; None is not measured."""
    numbers = [{type(row[i]) for row in rows} - {type(None)} for i in range(len(header))]
    aligned = ["---:" if kinds and kinds <= {int, float} else "---" for kinds in numbers]
    lines = [header, aligned, *([shown(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(cell: Any) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.3g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def gb(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / 1e9


def ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6


def share(part: float | None, whole: float | None) -> str | None:
    """How much more, in percent."""
    return None if part is None or not whole else f"{part / whole - 1:+.1%}"
