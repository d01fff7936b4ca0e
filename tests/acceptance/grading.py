"""Judge a first page by what its reader sees: its first finding, its sizes and its step."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import Truth

LOUD = 0.05  # of a step: a healthy run has no finding above it
STEP_ERROR = 0.03
COST_ERROR = 0.4  # a finding's own time may differ by so much from what the fault costs
UNITS = {"ns": 1, "µs": 1e3, "us": 1e3, "ms": 1e6, "s": 1e9}
AMOUNT = r"([\d,]+(?:\.\d+)?) (ns|µs|us|ms|s)\b"


@dataclass(frozen=True)
class Verdict:
    """What came of one page. `named` is null for pages that have to be quiet, `quiet` for the others.

    All are null for what could not be judged.
    """

    finding: str
    claim: str
    shown: float | None  # the step, ns
    cost: float | None  # of the first finding, ns
    named: bool | None
    quiet: bool | None
    step_right: bool | None
    cost_right: bool | None
    why_not: str = ""


@dataclass(frozen=True)
class Page:
    """What `lostflops why` printed, and its document."""

    document: Mapping[str, Any]
    text: str
    error: str = ""


def page_of(*paths: Path) -> Page:
    """Ask as a user would: by the command."""
    from lostflops import cli

    with tempfile.TemporaryDirectory() as folder, _environment(LOSTFLOPS_CACHE=folder, COLUMNS="160"):
        file = Path(folder, "page.json")
        said, complained = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            try:
                status = cli.main(["why", *map(str, paths), "--json", str(file)])
            except SystemExit as stop:
                status = stop.code
        if status or not file.exists():
            return Page({}, said.getvalue(), complained.getvalue().strip() or f"exit status {status}")
        return Page(json.loads(file.read_bytes()), said.getvalue())


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def judged(
    page: Page, truth: Truth, step: float, cost: float | None, step_error: float = STEP_ERROR
) -> Verdict:
    """Compare a page with the truth."""
    if page.error:
        lost = (None, False) if truth.quiet else (False, None)
        return Verdict("", "", None, None, *lost, False, None, page.error.splitlines()[-1])
    findings = page.document["findings"]
    first = findings[0] if findings else None
    shown = shown_step(page)
    step_right = shown is not None and abs(shown - step) <= step_error * step
    size = _size(first) if first else None
    if truth.quiet:
        loud = [f for f in findings if _is_loud(f, step) and not _pardoned(f, truth)]
        why = f"{loud[0]['name']} costs {_size(loud[0]) / 1e6:.1f} ms" if loud else ""
        heard = loud[0] if loud else first
        name, claim = (heard["name"], heard["claim"]) if heard else ("", "")
        return Verdict(name, claim, shown, size, None, not loud, step_right, None, why)
    if first is None:
        return Verdict("", "", shown, None, False, None, step_right, None, "no finding")
    why = _misses(first, truth)
    right = None
    if truth.cost and cost and size:
        right = abs(size - cost) <= COST_ERROR * cost
    return Verdict(first["name"], first["claim"], shown, size, not why, None, step_right, right, why)


def shown_step(page: Page) -> float | None:
    """The length of a step on the page, ns: the line above the ledger, whose columns stand apart."""
    for line in page.text.splitlines():
        found = re.match(rf"^\s*(?:(?:mean|median|typical|usual) )?step\s{{2,}}{AMOUNT}", line)
        if found:
            return float(found[1].replace(",", "")) * UNITS[found[2]]
    return None


def _size(finding: Mapping[str, Any]) -> float:
    """What the finding says that it is about, ns a step."""
    for key in ("cost_per_step", "ns_per_step"):
        if finding.get(key):
            return float(finding[key])
    amounts = [float(n.replace(",", "")) * UNITS[u] for n, u in re.findall(AMOUNT, finding["claim"])]
    return amounts[0] if amounts else 0.0


def _is_loud(finding: Mapping[str, Any], step: float) -> bool:
    return _size(finding) > LOUD * step


def _pardoned(finding: Mapping[str, Any], truth: Truth) -> bool:
    return bool(truth.pardoned) and re.search(truth.pardoned, _words(finding), re.IGNORECASE) is not None


def _words(finding: Mapping[str, Any]) -> str:
    parts = [
        finding["name"],
        finding["claim"],
        *finding.get("contributors", ()),
        *finding.get("evidence", ()),
    ]
    return "\n".join(map(str, parts))


def _misses(finding: Mapping[str, Any], truth: Truth) -> str:
    """What the first finding lacks, empty when it names the cause."""
    title = f"{finding['name']}\n{finding['claim']}"
    if not re.search(truth.kind, title, re.IGNORECASE):
        return f"{finding['name']} is not {truth.what}"
    words = _words(finding)
    for needed in truth.words:
        if not re.search(needed, words, re.IGNORECASE):
            return f"does not say {needed}"
    if truth.never and re.search(truth.never, words, re.IGNORECASE):
        return f"says {truth.never}"
    blamed = finding.get("rank")
    if truth.rank is not None and blamed is not None and blamed != truth.rank:
        return f"blames rank {blamed}, it is rank {truth.rank}"
    return ""
