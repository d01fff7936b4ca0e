"""The profile of one step that `lostflops.optimize.saved_tensors` writes, checked and made playable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lostflops.copies.simulation import Recorded, Storage
from lostflops.errors import BadProfile, Unreadable

Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=10**14)]  # a step of at most a day
Name = Annotated[str, msgspec.Meta(max_length=2000)]
MOST_ROWS = 30_000


class SavedStorage(msgspec.Struct, frozen=True):
    """One storage that autograd saved. Instants count from the start of the forward."""

    storage: int
    order: Annotated[int, msgspec.Meta(ge=0)]
    bytes: Bytes
    saves: Annotated[int, msgspec.Meta(ge=0)]
    module: Name
    tensor_class: Name
    operator: Name
    pack_ns: Nanoseconds
    unpack_ns: Nanoseconds | None = None
    recompute_ns: Nanoseconds | None = None
    covered_fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    kept_reason: Name | None = None

    @property
    def layer(self) -> str:
        """The repeated layer that it belongs to, "model.layers.3"; "" outside of layers."""
        match = re.match(r"(.*?\.\d+|\d+)(?:\.|$)", self.module)
        return match[1] if match else ""


class Profile(msgspec.Struct, frozen=True):
    """`highs`, where recorded: pairs of an instant and the most bytes since the one before."""

    schema: Literal[1]
    kind: Literal["saved-tensor profile"]
    model: Name
    device: Name
    forward_ns: Annotated[int, msgspec.Meta(gt=0, le=10**14)]
    backward_ns: Annotated[int, msgspec.Meta(gt=0, le=10**14)]
    static_bytes: Bytes
    peak_bytes: Bytes
    rows: Annotated[list[SavedStorage], msgspec.Meta(max_length=MOST_ROWS)]
    torch: Name = ""
    highs: list[tuple[Nanoseconds, Bytes]] | None = None

    @property
    def in_order(self) -> list[SavedStorage]:
        """The rows in the order of saving."""
        return sorted(self.rows, key=lambda row: (row.pack_ns, row.order))

    @property
    def saved_bytes(self) -> int:
        return sum(row.bytes for row in self.rows if row.kept_reason != "parameter")


def read(path: Path) -> Profile:
    """The profile in a file, if it is one and holds together."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Unreadable(path, error) from error
    try:
        profile = msgspec.json.decode(content, type=Profile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadProfile(path, str(error)) from error
    why = _wrong(profile)
    if why:
        raise BadProfile(path, why)
    return profile


def _wrong(profile: Profile) -> str:
    """What does not hold together, in words; "" if all does."""
    step = profile.forward_ns + profile.backward_ns
    if profile.peak_bytes < profile.static_bytes:
        return f"its peak of {profile.peak_bytes:,} bytes is below the {profile.static_bytes:,} of the model"
    if not profile.rows:
        return "it has no rows: nothing was saved for a backward"
    if len({row.storage for row in profile.rows}) < len(profile.rows):
        return "two rows are of one storage"
    for row in profile.rows:
        if row.pack_ns > profile.forward_ns:
            return f"storage {row.storage} is saved after the forward has ended"
        if row.unpack_ns is not None and not row.pack_ns <= row.unpack_ns <= step:
            return f"storage {row.storage} is asked for outside of the step, or before it is saved"
    ends = [at for at, _ in profile.highs or []]
    if ends != sorted(ends):
        return "its `highs` are not in order"
    return ""


def recorded(profile: Profile, least_bytes: int = 0) -> Recorded:
    """The step for the simulator. The engine does not handle storages below `least_bytes`."""
    storages = [
        Storage(
            row.bytes,
            row.pack_ns,
            row.unpack_ns,
            unseen=row.kept_reason is not None or row.bytes < least_bytes,
        )
        for row in profile.in_order
    ]
    highs = profile.highs or _highs(profile, storages)
    return Recorded(profile.forward_ns, profile.backward_ns, storages, highs)


def _highs(profile: Profile, storages: Sequence[Storage]) -> list[tuple[int, int]]:
    """Without a record of memory over time: what is saved, and always as many transients as at the peak.

    That is never too little at the end of the forward, where most of what is saved is there.
    """
    step = profile.forward_ns + profile.backward_ns
    changes: dict[int, int] = {profile.forward_ns: 0, step: 0}
    for storage, row in zip(storages, profile.in_order, strict=True):
        if row.kept_reason == "parameter":
            continue  # is static
        changes[storage.saved] = changes.get(storage.saved, 0) + storage.bytes
        end = step if storage.asked is None else storage.asked
        changes[end] = changes.get(end, 0) - storage.bytes
    highs: list[tuple[int, int]] = []
    now = 0
    for at in sorted(changes):
        highs.append((at, now))
        now += changes[at]
    rest = max(0, profile.peak_bytes - max(saved for _, saved in highs))
    return [(at, saved + rest) for at, saved in highs]
