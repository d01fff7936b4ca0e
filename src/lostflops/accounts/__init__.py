"""The accounts of the ledger: what each means, how it is found, what it costs, and what to do about it.

An account is declared once. One of idle time is a file in `idle/`, found by being there, with the names of
host rows that prove it; the page, the recipes, `lostflops explain` and `docs/ledger.md` read it here.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module

from lostflops.accounts import idle
from lostflops.accounts.account import Account, CausePattern, Loss
from lostflops.accounts.busy import BUSY

__all__ = ["ACCOUNTS", "IDLE", "WAITING", "Account", "CausePattern", "Loss"]


def _found() -> Iterator[Account]:
    for module in pkgutil.iter_modules(idle.__path__, f"{idle.__name__}."):
        for declared in vars(import_module(module.name)).values():
            if isinstance(declared, Account):
                yield declared


# Causes of idle time in the order in which they claim an instant that several could.
IDLE = tuple(sorted(_found(), key=lambda account: (account.order, account.name)))
ACCOUNTS: Mapping[str, Account] = {account.name: account for account in (*BUSY, *IDLE)}

# What a rank spends on others that are not there yet, as far as the trace can tell.
WAITING = ("communication.wait", "communication.exposed", "idle.pipeline_bubble")
