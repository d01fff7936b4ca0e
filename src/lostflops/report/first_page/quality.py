"""Facts about the recording as sentences, each told once for all the ranks that it holds for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lostflops.store.trace import Quality

MOST_RANKS = 6


@dataclass(frozen=True)
class QualityNote:
    """One fact. `where` lists the ranks, or is 'run' when it is about all of it."""

    level: str
    where: str
    text: str

    @property
    def said(self) -> str:
        """The fact with the ranks it holds for."""
        return self.text if self.where == "run" else f"{self.where}: {self.text}"

    @property
    def is_warning(self) -> bool:
        return self.level == "warning"


def facts(quality: Sequence[Quality]) -> list[QualityNote]:
    """Warnings first. Facts that differ only in their numbers are told with one rank as the example."""
    alike: dict[tuple[bool, str, str], list[Quality]] = {}
    for fact in quality:
        key = (fact.level != "warning", fact.name, re.sub(r"\d[\d,.]*", "#", fact.text))
        alike.setdefault(key, []).append(fact)
    return [_told(found) for _, found in sorted(alike.items())]


def _told(found: Sequence[Quality]) -> QualityNote:
    ranks = sorted({fact.rank for fact in found if fact.rank is not None})
    where = "run"
    if ranks:
        where = f"rank{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks[:MOST_RANKS]))
        where += f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    first = max(found, key=lambda fact: fact.count)
    text = stated(first)
    if len({(fact.count, fact.meaning) for fact in found}) > 1 and first.rank is not None:
        text = f"{text} (numbers of rank {first.rank})"
    return QualityNote(first.level, where, text)


def stated(fact: Quality) -> str:
    """The fact in one sentence: its name, how often, and what it means."""
    if fact.of is not None:
        return f"{fact.name}: {fact.count:,} {fact.meaning}"
    if fact.count > 1 and f"{fact.count:,}" not in fact.text:
        return f"{fact.name}: {fact.count:,}, {fact.text}"
    return f"{fact.name}: {fact.text}"
