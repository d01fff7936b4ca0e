"""What an account of the ledger is: all that is to be said of it, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The thread that launched the work which ends the gap; where none follows, the one that launches most.
WHILE = "Nothing runs on the GPU while "
LATE = WHILE + "the CPU thread that launches work "

Row = Literal["range", "operator", "frame", "launch"]


@dataclass(frozen=True)
class CausePattern:
    """Names of host rows that prove a cause: each contains one of these pieces and matches `also`."""

    rows: tuple[Row, ...]
    contains: tuple[str, ...]
    source: str
    example: str
    also: str = ""


@dataclass(frozen=True)
class Loss:
    """The finding that an idle account is worth from some share of the step on.

    `claim` ends the sentence 'The GPU idles 7 ms per step'.
    """

    finding: str
    claim: str
    from_share: float
    # A bound holds only where removing the cause removes the time; elsewhere the gain is unknown.
    removable: bool = True
    takes_copies: bool = False  # copies that the cause makes go with it
    on_host: str = ""  # the claim, where host operators stand in for kernels
    remedies: tuple[str, ...] = ()  # what removes it, the best first
    also: tuple[str, ...] = ()  # what else helps, which the page names and does not spell out
    none_known: str = ""  # why there is no remedy
    edit: str = ""  # the edit of `lostflops whatif` that removes it
    takes: str = ""  # what takes the time, where the same finding is also about other accounts


@dataclass(frozen=True)
class Account:
    """One account. `label` is what the page calls it."""

    name: str
    label: str
    meaning: str
    found: str
    remedy: str
    remedies: tuple[str, ...] = ()  # what makes it shorter, where it is no loss
    # The same where host operators stand in for kernels, if that is another.
    remedy_on_host: str = ""
    # What `meaning` begins with that the line of its group says too: the page does not repeat it.
    said_by_group: str = ""
    # Idle accounts: of several that could claim an instant the one with the lowest number does.
    order: int = 0
    # Whether a host row shows it by its name, told by `patterns` or by what `recipes/accounting.py` does.
    proven: bool = False
    patterns: tuple[CausePattern, ...] = ()
    loss: Loss | None = None
    noun: str = ""  # what a sentence calls it, where that is not the label
    verdict: str = ""  # what a job is called that it bounds: 'Input-bound'
    makes_late: str = ""  # what makes a rank late: 'its data loader makes' it 7 ms late
    spent: str = ""  # what a late rank has more of: 7 ms 'of data loading'

    def advice(self, on_host: bool) -> str:
        """What to do about it, where host operators stand in for kernels or not."""
        return (on_host and self.remedy_on_host) or self.remedy
