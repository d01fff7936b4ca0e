"""How much longer a step takes when it touches more unified memory than its GPU has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lostflops.copies import link_card
from lostflops.errors import Refused
from lostflops.units import bytes_of

TOO_MUCH = 0.02  # of a step in migrations; published profiles: 1.1 % was fine, 9.8 % was not


def managed_prediction(
    excess_touched: int | str,
    link: Mapping[str, Any] | float,
    *,
    written_to: bool = True,
    step_ns: int | None = None,
) -> dict[str, Any]:
    """Predicted time per step in migrations: excess bytes touched / migration rate, twice when evicted dirty.

    excess_touched: bytes beyond the GPU's memory that a step touches, counted each time that they have to
    come back. A step that walks over more memory than the GPU has, in the same order every time, may bring
    back all of it and not only the excess: what was used longest ago goes first, and is needed next.

    link: a link card, or bytes per second. Without a measured migration rate on the card a fifth of its
    pinned copies' rate is assumed, never the link's own. written_to: evicted pages were changed and travel
    back as well. With step_ns, the time of a step without migrations, their share is told.
    """
    nbytes = bytes_of(excess_touched)
    if isinstance(link, Mapping):
        per_second, basis = link_card.migration(link)
    else:
        per_second, basis = float(link), "given"
    if not per_second > 0:
        raise Refused(f"a migration rate of {per_second} bytes per second", "measure the link")
    moved = nbytes * (2 if written_to else 1)
    taken = round(1e9 * moved / per_second)
    found: dict[str, Any] = {
        "status": "predicted",
        "migrated_bytes": moved,
        "bytes_per_second": per_second,
        "rate_is": basis,
        "migration_ns": taken,
    }
    if step_ns is not None:
        share = taken / (step_ns + taken) if taken else 0.0
        found |= {"share_of_step": share, "worth_it": share <= TOO_MUCH}
    return found
