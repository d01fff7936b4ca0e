"""Which saved tensors to keep, to move to the host, or to compute again, so that a step fits its budget.

Decided per tensor class ("model.layers.*.mlp/MulBackward0") from the profile of one step: every plan that is
considered is played on that step, and the fastest within the budget is taken. A step that fits is left alone,
and what cannot be reached is refused with what can.

Which plans are considered depends on the profile and the link, never on the budget, so a larger budget never
gives a slower step. Modules are computed again as a whole, the cheapest per byte that it frees first; of what
is left, classes are moved, the largest storages first, for each copy costs its start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from lostflops.copies.simulation import Again, Limits, Played, Recorded, play
from lostflops.errors import shown
from lostflops.plan.hardware import LinkCard
from lostflops.units import written

from .saved_profile import Profile, SavedStorage, recorded

Decision: TypeAlias = Literal["keep", "offload", "recompute"]

MOST_CLASSES = 24  # that are decided about; the others are kept
MOST_MODULES = 8  # that are thought of to be computed again
MOST_NAMED = 64  # modules of a profile that are looked at
MOST_PLAYED = 3_000_000  # storages, over all plans: some ten seconds
FEWEST_SHARE = 0.005  # of what is saved, below which a class is not worth deciding about

# What predictions were off by at most where they were measured, with benchmarks/predictions.py. A profile
# without memory over time leaves the place of its peak to be guessed.
STEP_ERROR = 0.10
PEAK_ERROR = 0.05
PEAK_ERROR_WITHOUT_HIGHS = 0.15


@dataclass(frozen=True)
class Module:
    """One that can be computed again: per instance, its rows without the first (its input) and ns."""

    name: str  # "model.layers.*.mlp"
    instances: tuple[Again, ...]
    freed_bytes: int

    @property
    def ns(self) -> int:
        return sum(one.ns for one in self.instances)

    def holds(self, path: str) -> bool:
        return path == self.name or path.startswith(f"{self.name}.")


@dataclass(frozen=True)
class Class:
    """One tensor class of the profile and what is decided about it, and why."""

    name: str
    rows: tuple[SavedStorage, ...]
    movable_bytes: int
    kept_because: str | None  # nothing of it can be moved
    decision: Decision = "keep"
    why: str = ""

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def module(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class Mix:
    """Modules that are computed again, and names of classes that are moved; the rest is kept."""

    modules: tuple[Module, ...] = ()
    moved: frozenset[str] = frozenset()

    def of(self, entry: Class) -> Decision:
        if any(module.holds(entry.module) for module in self.modules):
            return "recompute"
        return "offload" if entry.name in self.moved else "keep"


@dataclass(frozen=True)
class Considered:
    """One plan, played."""

    mix: Mix
    limits: Limits
    played: Played

    @property
    def order(self) -> tuple[int, int, int]:
        """Faster first; among equals the one that moves least, for every copy is a risk."""
        return self.played.step_ns, self.played.bytes_out, self.played.peak_bytes


@dataclass(frozen=True)
class OffloadPlan:
    """The plan, or why there is none (`refused`; then everything is kept). All figures are predicted."""

    profile: Profile
    link: LinkCard
    budget_bytes: int
    host_memory_bytes: int | None
    classes: tuple[Class, ...]  # largest first
    chosen: Considered
    without: Played
    free_bytes: int
    smallest_peak_bytes: int
    reasons: tuple[str, ...]
    refused: str | None
    peak_error: float


def plan(
    profile: Profile,
    budget_bytes: int,
    link: LinkCard,
    host_memory_bytes: int | None = None,
    may: Sequence[Decision] = ("offload", "recompute"),
) -> OffloadPlan:
    """The fastest plan whose predicted peak is within the budget, or a refusal. It does nothing but `may`."""
    return Planning(profile, link, host_memory_bytes, may).within(budget_bytes)


class Planning:
    """A profile and a link, and all plans that are considered for them; no budget yet."""

    def __init__(
        self,
        profile: Profile,
        link: LinkCard,
        host_memory: int | None = None,
        may: Sequence[Decision] = ("offload", "recompute"),
    ) -> None:
        self.profile, self.link, self.host_memory, self.may = profile, link, host_memory, may
        self.rows = profile.in_order
        self.copies = link.copies
        self.step = recorded(profile, self.copies.least_bytes)
        self.kept = [_kept_because(row, self.copies.least_bytes) for row in self.rows]
        self.classes = self._classes()
        self.modules = _modules(self.rows) if "recompute" in may else ()
        self.without = play(self.step, self.copies)

    @cached_property
    def considered(self) -> list[Considered]:
        """Every plan that is thought of, without a budget."""
        return self._considered()

    @cached_property
    def allowed(self) -> list[Considered]:
        """Those for which there is host memory."""
        most = self.host_memory
        return [c for c in self.considered if most is None or c.played.bytes_out <= most]

    def within(self, budget: int) -> OffloadPlan:
        nothing = Considered(Mix(), Limits(), self.without)
        smallest = min([nothing, *self.considered], key=lambda c: c.played.peak_bytes)
        fitting = [c for c in self.allowed if c.played.peak_bytes <= budget]
        chosen, refused = min(fitting, key=lambda c: c.order, default=nothing), None
        if self.without.peak_bytes <= budget:
            chosen, refused = nothing, self._fits(budget)
        elif not fitting:
            refused = self._unreachable(budget, smallest.played)
        return OffloadPlan(
            profile=self.profile,
            link=self.link,
            budget_bytes=budget,
            host_memory_bytes=self.host_memory,
            classes=tuple(self._explained(entry, chosen) for entry in self.classes),
            chosen=chosen,
            without=self.without,
            free_bytes=free_bytes(self.step, self.link),
            smallest_peak_bytes=smallest.played.peak_bytes,
            reasons=() if refused else tuple(self._reasons(chosen.played)),
            refused=refused,
            peak_error=PEAK_ERROR if self.profile.highs else PEAK_ERROR_WITHOUT_HIGHS,
        )

    # What is considered.

    def _classes(self) -> tuple[Class, ...]:
        members: dict[str, list[tuple[SavedStorage, str | None]]] = {}
        for row, why in zip(self.rows, self.kept, strict=True):
            members.setdefault(row.tensor_class, []).append((row, why))
        found = (
            Class(
                name=name,
                rows=tuple(row for row, _ in own),
                movable_bytes=sum(row.bytes for row, why in own if not why),
                kept_because=own[0][1] if all(why for _, why in own) else None,
            )
            for name, own in members.items()
        )
        return tuple(sorted(found, key=lambda c: (-c.bytes, c.name)))

    def _considered(self) -> list[Considered]:
        first = [self.played(mix, limits) for mix in self._mixes() for limits in self._limits(mix, few=True)]
        finer = (
            self.played(at.mix, limits) for at in _front(first) for limits in self._limits(at.mix, few=False)
        )
        return [*first, *finer]

    def _mixes(self) -> Iterator[Mix]:
        """Some modules computed again, and of the classes that are left a first part moved."""
        most = min(MOST_CLASSES, max(2, MOST_PLAYED // (4 * MOST_MODULES * len(self.rows))))
        least = max(1, FEWEST_SHARE * self.profile.saved_bytes)
        big = sorted(
            (c for c in self.classes if c.movable_bytes >= least and "offload" in self.may),
            key=lambda c: (-max(row.bytes for row in c.rows), -c.movable_bytes, c.name),
        )
        for modules in _recomputed(self.modules, self.classes):
            left = [c for c in big if not any(m.holds(c.module) for m in modules)][:most]
            for count in range(len(left) + 1):
                if modules or count:
                    yield Mix(modules, frozenset(c.name for c in left[:count]))

    def _moved(self, mix: Mix) -> list[int]:
        return [
            number
            for number, (row, why) in enumerate(zip(self.rows, self.kept, strict=True))
            if not why and row.tensor_class in mix.moved
        ]

    def _limits(self, mix: Mix, few: bool) -> list[Limits]:
        """What may be under way, from tight to generous, by what a layer moves."""
        moving = [self.rows[number] for number in self._moved(mix)]
        if not moving:
            return [Limits()] if few else []
        layers: dict[str, int] = {}
        for row in moving:
            layers[row.layer] = layers.get(row.layer, 0) + row.bytes
        largest, together = max(row.bytes for row in moving), sum(row.bytes for row in moving)
        layer = max((size for name, size in layers.items() if name), default=largest)
        look, backward = self.copies.in_ns(layer), self.profile.backward_ns
        if few:
            near = min(2 * layer, together)
            return [Limits(near, min(2 * look, backward), near), Limits(together, backward, together)]
        sizes = sorted({min(size, together) for size in (largest, layer, 2 * layer, 4 * layer, together)})
        looks = sorted({min(n * look, backward) for n in (1, 2, 4, 16)})
        return [Limits(size, ahead, size) for size in sizes for ahead in looks]

    def played(self, mix: Mix, limits: Limits) -> Considered:
        """What such a plan would do."""
        again = [one for module in mix.modules for one in module.instances]
        return Considered(mix, limits, play(self.step, self.copies, self._moved(mix), again, limits))

    # What is said about it.

    def _fits(self, budget: int) -> str:
        return (
            f"it fits as it is: the peak of {written(self.without.peak_bytes)} is within the budget of "
            f"{written(budget)}, so nothing is moved"
        )

    def _unreachable(self, budget: int, smallest: Played) -> str:
        if self.profile.static_bytes > budget:
            return (
                f"the model alone holds {written(self.profile.static_bytes)}, over the budget of "
                f"{written(budget)}: no plan for what is saved can change that"
            )
        enough = [c.played.bytes_out for c in self.considered if c.played.peak_bytes <= budget]
        if enough:
            within = min((c.played.peak_bytes for c in self.allowed), default=self.without.peak_bytes)
            return (
                f"host memory is too small: {written(min(enough))} would have to be moved, and "
                f"{written(self.host_memory or 0)} is there; the smallest peak within it is "
                f"{written(within)}"
            )
        text = (
            f"the smallest peak that was found is {written(smallest.peak_bytes)}, "
            f"{written(smallest.peak_bytes - budget)} over the budget of {written(budget)}; "
            f"it is then {self._place(smallest.peak_at)}"
        )
        if not self.modules and "recompute" in self.may:
            text += "; no repeated layers are named in the profile, so nothing can be computed again"
        return text

    def _place(self, at: int) -> str:
        """Where in the step an instant is, in words."""
        last = max((row.pack_ns for row in self.rows if row.layer), default=self.profile.forward_ns)
        asked = [row for row in self.rows if row.unpack_ns is not None and row.unpack_ns < at]
        if at > last and not any(row.layer for row in asked):
            return "at the head and the loss, in logits and not in what layers save: a fused loss lowers it"
        if at <= self.profile.forward_ns:
            before = [row for row in self.rows if row.pack_ns < at] or self.rows[:1]
            return f"in the forward of '{shown(before[-1].module)}'"
        latest = max(asked, key=lambda row: row.unpack_ns or 0)
        return (
            f"in the backward of '{shown(latest.module)}', in what it computes (or computes again), "
            "not in what was saved"
        )

    def _explained(self, entry: Class, chosen: Considered) -> Class:
        decision = chosen.mix.of(entry)
        if decision != "recompute" and entry.kept_because:
            return replace(entry, why=entry.kept_because)
        moving = sum(
            self.copies.out_ns(row.bytes) + self.copies.in_ns(row.bytes)
            for row in entry.rows
            if not row.kept_reason
        )
        holding = [module for module in self.modules if module.holds(entry.module)]
        inner = min(holding, key=lambda module: module.freed_bytes, default=None)
        again = f"'{shown(inner.name)}' again {_ms(inner.ns)}" if inner else "cannot be computed again"
        return replace(entry, decision=decision, why=f"moving {_ms(moving)}; {again}")

    def _reasons(self, played: Played) -> Iterator[str]:
        before = self.without
        yield (
            f"the peak falls from {written(before.peak_bytes)} to {written(played.peak_bytes)}; "
            f"it is then {self._place(played.peak_at)}"
        )
        if played.bytes_out:
            free = free_bytes(self.step, self.link)
            beyond = "" if played.bytes_out <= free else "; the rest is waited for at the link's rate"
            saved = written(self.profile.saved_bytes)
            yield (
                f"{written(played.bytes_out)} of {saved} saved are moved; up to {written(free)} could "
                f"hide behind compute{beyond}"
            )
        if played.compute_ns > before.compute_ns:
            yield f"computing again takes {_ms(played.compute_ns - before.compute_ns)} of every step"
        longer = played.step_ns / before.step_ns - 1
        yield f"the step gets {longer:.1%} longer" if longer >= 0.0005 else "the step does not get longer"


def free_bytes(step: Recorded, link: LinkCard) -> int:
    """What can travel at most without making the step longer."""
    return int(min(link.out * step.forward, link.into * step.backward) / 1e9)


def _kept_because(row: SavedStorage, least: int) -> str | None:
    """Why a row cannot be moved, or None."""
    if row.kept_reason:
        return row.kept_reason
    if row.unpack_ns is None:
        return "the backward does not ask for it"
    if row.bytes < max(1, least):
        return "too small: starting a copy takes longer than the copy"
    return None


def _modules(rows: Sequence[SavedStorage]) -> tuple[Module, ...]:
    """Modules inside of repeated layers that free something, the cheapest to compute again per byte first.

    A module is computed again from its input, the first that it saves; until its last save is computed.
    """
    members: dict[str, dict[str, list[int]]] = {}
    for number, row in enumerate(rows):
        if row.kept_reason or row.unpack_ns is None:
            continue
        parts = row.module.split(".")
        starred = ["*" if part.isdigit() else part for part in parts]
        for end in range(1, len(parts) + 1):
            if "*" in starred[:end]:
                instances = members.setdefault(".".join(starred[:end]), {})
                instances.setdefault(".".join(parts[:end]), []).append(number)
    found: list[Module] = []
    for name, instances in members.items():
        later = [*list(instances.values())[1:], []]
        own_only = [_own(rows, own, after) for own, after in zip(instances.values(), later, strict=True)]
        again = tuple(
            Again(tuple(own[1:]), rows[own[-1]].pack_ns - rows[own[0]].pack_ns)
            for own in own_only
            if len(own) > 1
        )
        freed = sum(rows[number].bytes for one in again for number in one.storages)
        if freed:
            found.append(Module(name, again, freed))
    largest = sorted(found, key=lambda m: (-m.freed_bytes, m.name))[:MOST_NAMED]  # no part before its whole
    return tuple(sorted(largest, key=lambda m: (m.ns / m.freed_bytes, m.name)))


def _own(rows: Sequence[SavedStorage], own: Sequence[int], after: Sequence[int]) -> list[int]:
    """Without what the next instance asks for as well, as layers share a rotary table: that is an input."""
    if not after:
        return list(own)
    asked = sorted(rows[number].unpack_ns or 0 for number in after)
    return [number for number in own if (rows[number].unpack_ns or 0) > asked[len(asked) // 2]]


def _recomputed(modules: Sequence[Module], classes: Sequence[Class]) -> list[tuple[Module, ...]]:
    """Sets of modules to compute again: none, each of the largest, and the cheapest 2, 3, ... of them."""
    largest = sorted(modules, key=lambda m: (-m.freed_bytes, m.name))[:MOST_MODULES]
    cheapest = sorted(largest, key=modules.index)
    sets = [(), *((module,) for module in cheapest)]
    sets += [tuple(cheapest[:count]) for count in range(2, len(cheapest) + 1)]
    paths = {entry.module for entry in classes}
    return list(dict.fromkeys(_as_applied(some, modules, paths) for some in sets))


def _as_applied(
    some: Sequence[Module], modules: Sequence[Module], paths: Collection[str]
) -> tuple[Module, ...]:
    """As `lostflops.optimize.checkpoint` does it: a module is computed again if all of its parts are."""
    covered = {path for path in paths if any(module.holds(path) for module in some)}
    return _outermost([m for m in modules if all(path in covered for path in paths if m.holds(path))])


def _outermost(modules: Sequence[Module]) -> tuple[Module, ...]:
    return tuple(m for m in modules if not any(o is not m and o.holds(m.name) for o in modules))


def _front(plans: Sequence[Considered]) -> Iterator[Considered]:
    """Those that no other beats in both time and peak."""
    lowest: int | None = None
    for one in sorted(plans, key=lambda c: c.order):
        if lowest is None or one.played.peak_bytes < lowest:
            lowest = one.played.peak_bytes
            yield one


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.2f} ms"


def record(found: OffloadPlan) -> dict[str, Any]:
    """The plan as plain data, for `lostflops.optimize.offload(model, plan=...)`."""
    played, without = found.chosen.played, found.without
    return {
        "schema": 1,
        "kind": "offload plan",
        "status": "predicted",
        "model": found.profile.model,
        "budget_bytes": found.budget_bytes,
        "host_memory_bytes": found.host_memory_bytes,
        "link": found.link.name,
        "classes": {entry.name: entry.decision for entry in found.classes},
        "threshold_bytes": found.link.copies.least_bytes,
        "in_flight_bytes": found.chosen.limits.in_flight_bytes,
        "look_ahead_ns": found.chosen.limits.look_ahead_ns,
        "look_ahead_bytes": found.chosen.limits.look_ahead_bytes or 0,
        "predicted": {
            "step_ns": played.step_ns,
            "peak_bytes": played.peak_bytes,
            "bytes_out": played.bytes_out,
            "bytes_in": played.bytes_in,
            "hidden_share": played.hidden,
            "hidden_share_out": played.hidden_out,
            "hidden_share_in": played.hidden_in,
            "recompute_ns": played.compute_ns - without.compute_ns,
            "step_error": STEP_ERROR,
            "peak_error": found.peak_error,
            "free_bytes": found.free_bytes,
            "smallest_peak_bytes": found.smallest_peak_bytes,
            "without": {"step_ns": without.step_ns, "peak_bytes": without.peak_bytes},
        },
        "reasons": list(found.reasons),
        "refused": found.refused,
    }
