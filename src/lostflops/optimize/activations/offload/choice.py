"""What the engine learned from the first microbatch, and what it therefore moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from lostflops.copies.link import Link
from lostflops.copies.simulation import Storage
from lostflops.optimize.activations.offload.moved_storages import Selection, foresee, select
from lostflops.optimize.activations.offload.schedule import Microbatch
from lostflops.optimize.amounts import written
from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from lostflops.optimize.device.devices import Device, Event

EVERYTHING = "everything"

Plan = Mapping[str, Any]


@dataclass
class Watched(Microbatch):
    """A microbatch with what is measured of it. The events only while it is watched closely."""

    begin: Event = None
    base_bytes: int = 0  # device memory in use before it
    live: int = 0  # entries that somebody can ask for
    unpacks: int = 0
    sent: int = 0  # entries
    asked: dict[int, Event] = field(default_factory=dict[int, "Event"])  # by number, in the order of asking
    classes: list[str] = field(default_factory=list[str])  # of entries, by number
    counted: set[int] = field(default_factory=set[int])  # storages that stayed
    stayed: dict[str, str] = field(default_factory=dict[str, str])  # reason by class, of what is no entry
    saved_events: list[Event] = field(default_factory=list["Event"])
    beside: dict[tuple[int, bool], int] = field(default_factory=dict[tuple[int, bool], int])
    most_in_use: int = 0  # of what was seen
    end: Event = None  # when the last one was asked for
    checked: bool = False  # what came back was compared: that takes time


@dataclass(frozen=True)
class Learned:
    saved: list[Storage]  # by number
    classes: list[str]
    order: list[int]  # numbers, as they were asked for
    due_ns: list[int]  # by place in the order
    compute_ns: int
    link: Link
    other_bytes: int  # of the peak, on top of what was seen at saves and askings; 0 where it is not known


def learn(
    watched: Watched,
    stalls: Iterable[tuple[Event, Event]],
    device: Device,
    link: Link,
    peak_bytes: int | None,
) -> Learned:
    """Waits until the microbatch is over. `stalls` are from when to when something held compute up that later
    ones do not have. `peak_bytes` is the device memory in use at its peak, if known."""
    device.synchronize(watched.end)
    waits = sorted(
        (device.elapsed(watched.begin, start), device.elapsed(start, end)) for start, end in stalls
    )
    starts = [start for start, _ in waits]
    waited = [0, *accumulate(lasted for _, lasted in waits)]

    def compute_ns(event: Event) -> int:
        """On a clock that stands still while compute waits for copies."""
        at = device.elapsed(watched.begin, event)
        return max(0, at - waited[bisect_left(starts, at)])

    asked = {number: compute_ns(event) for number, event in watched.asked.items()}
    saved = [
        Storage(
            entry.nbytes,
            compute_ns(event),
            asked.get(entry.number),
            beside_at_save=watched.beside.get((entry.number, False), 0),
            beside_at_ask=watched.beside.get((entry.number, True), 0),
        )
        for entry, event in zip(watched.entries, watched.saved_events, strict=True)
    ]
    other = 0 if peak_bytes is None else max(0, peak_bytes - watched.most_in_use)
    return Learned(
        saved=saved,
        classes=watched.classes,
        order=list(asked),
        due_ns=list(asked.values()),
        compute_ns=compute_ns(watched.end),
        link=link,
        other_bytes=other,
    )


def choose(
    learned: Learned,
    plan: Plan | str | None,
    budget: int | None,
    in_use: int,
    among: tuple[bool, ...] | None = None,
) -> Selection:
    """What moves. `in_use` is the device memory in use outside of a step. Without plan and budget, none but
    `among`. Refuses what cannot be reached."""
    if isinstance(plan, Mapping):
        return _planned(learned, plan)
    if plan == EVERYTHING:
        return foresee(learned.saved, [True] * len(learned.saved), learned.compute_ns, learned.link)
    if budget is None:
        saved = learned.saved
        if among is not None:
            saved = [replace(one, movable=may) for one, may in zip(saved, among, strict=True)]
        return select(saved, learned.compute_ns, learned.link)
    chosen = select(learned.saved, learned.compute_ns, learned.link, budget - in_use - learned.other_bytes)
    least = in_use + learned.other_bytes + chosen.resident_bytes
    if least > budget:
        raise Refused(
            f"{written(budget)} cannot be reached: with everything moved that can be, the step takes "
            f"{written(least)}: {written(in_use)} before it, {written(chosen.resident_bytes)} for saved "
            f"tensors on their way and gradients, {written(learned.other_bytes)} for a moment",
            "allow more, or make the step smaller: a smaller microbatch, `optimize.checkpoint`",
        )
    return chosen


def check_found(plan: Plan, classes: Collection[str], stayed: Mapping[str, str]) -> None:
    """Refuses a plan for what the model does not save, or what cannot be moved."""
    for name, action in plan["classes"].items():
        if action == "offload" and name not in classes:
            if name in stayed:
                raise Refused(
                    f"the plan moves {name}, which stays: {stayed[name]}",
                    "plan again, for this model and machine",
                )
            raise Refused(
                f"the plan moves {name}, which this model does not save",
                "plan again: the model is not the planned one",
            )


def _planned(learned: Learned, plan: Plan) -> Selection:
    offloaded = {name for name, action in plan["classes"].items() if action == "offload"}
    moves = [name in offloaded for name in learned.classes]
    chosen = foresee(learned.saved, moves, learned.compute_ns, learned.link)
    return chosen.within(
        plan.get("in_flight_bytes"), plan.get("look_ahead_bytes") or None, plan.get("look_ahead_ns")
    )
