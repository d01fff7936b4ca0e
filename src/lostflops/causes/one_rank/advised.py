"""What to do on ranks that are late by an account, and the name that remedies know it by."""

from __future__ import annotations

from lostflops.accounts import ACCOUNTS
from lostflops.causes.declared import LOGGING
from lostflops.causes.longer_compute import slow_device
from lostflops.causes.page_findings import PageFindings
from lostflops.recipes.accounting import UNEXPLAINED

UNEVEN = "uneven-work"  # what remedies know it by that ranks have unlike amounts to do: it is for all of them
FINDING_OF = {name: account.loss.finding for name, account in ACCOUNTS.items() if account.loss}


def advised(
    page: PageFindings, cause: str, device_slow: bool, logged: bool = False
) -> tuple[str, tuple[str, ...]]:
    """What to do on ranks that are late by an account, and the remedies; a CPU may have advice of its own."""
    given = page.given
    if own := given.own_remedy(cause):
        return own, ()
    key = _key_of(cause, device_slow, logged)
    remedy = "Log less often." if logged else _advice(page, cause, device_slow)
    return given.advice(key, remedy), given.named(key)


def _key_of(cause: str, device_slow: bool, logged: bool) -> str:
    """The name that remedies know such lateness by."""
    if logged:
        return LOGGING.name
    own = "slow-device" if device_slow else UNEVEN if cause == "compute" else cause
    return FINDING_OF.get(cause, own)


def _advice(page: PageFindings, cause: str, device_slow: bool) -> str:
    if cause in ACCOUNTS and cause != "compute":
        return ACCOUNTS[cause].remedy
    if device_slow or page.given.on_host:
        return slow_device(page.given)
    return (
        "Even out the work: sequences of like length per rank (length grouping, packing), stages of one cost."
    )


def label(account: str) -> str:
    """What an account is called as a cause."""
    if account == UNEXPLAINED:
        return "pauses for reasons that were not recorded"
    return ACCOUNTS[account].label if account in ACCOUNTS else account


def cheaper_there(name: str) -> str:
    return f"Make {name} cheaper there, or take it out of the step."
