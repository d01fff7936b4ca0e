"""Match one collective over the ranks that took part, and split its time on each into wait and transfer.

A collective begins to move data when its last participant arrives. What a rank spends in it before that is
waiting for others, what it spends after is transfer, whatever the kernel's own duration says.

Ranks run the operations of one lane, a process group or the two ends of a send, in one order. So instances
are told by the lane and the place in that order, never by time: by the source's sequence number where there
is one, else by counting, from the start of the recording or, when ranks began at different places, from its
end. The order is that of the launches: what they put on two streams may begin in another order on each rank.
An instance counts only when all members are there and agree in kind and bytes, and when no member of a
synchronising collective leaves before the last has come.

Most jobs have few collectives, and then Polars takes longer to plan than to compute: rows are columns of
numbers of NumPy here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.intervals.order import (
    NEVER,
    Bool,
    Int,
    RowGroups,
    by_name,
    changes_of,
    filled,
    numbered,
    sorted_by,
)
from lostflops.intervals.unnamed_groups import with_groups

# Nobody can leave these before everybody has arrived. The root of a broadcast can.
SYNCHRONISING = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
# All ranks move the same bytes in these; an all-to-all may split unevenly.
SAME_BYTES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
PAIR = ("send", "receive")
PAIRED = "pair"  # what both are together
# A step of communication that one rank does alone: DeepEP counts tokens before it sends them.
LOCAL = ("layout",)
# Without a measured error, times up to this far apart are not held against a match.
UNKNOWN_ERROR = 1_000_000

# By how many places an operation may begin before or after its turn, where threads share a queue.
NEARLY = 8

WORLD = "all ranks"
ONE_RANK = "only one rank was recorded: its waiting and its transfer look alike"
LISTED = re.compile(r"\[[0-9, ]*\]$")
DIFFER = "the ranks' collectives differ in kind, bytes or order"
NOBODY_ELSE = "no other rank recorded it"
IN_ONE_LAUNCH = "its messages are sent and received in one launch, which shows one time for all"
CONTRADICT = "the ranks' times contradict each other: one leaves before another has come"
NO_GROUP = "its group is unknown"
SEVERAL = f"{NO_GROUP}, and ranks leave its operations too far apart for one group of all ranks"
# Ranks leave one collective within microseconds of each other. Where they leave operations of no known group
# further apart than this, ns, and than this share of their time, in such a part of so many at least, groups
# of some ranks ran them side by side.
LEFT_APART, OF_STAY, IN_MANY, OF_FEWEST = 20_000, 0.25, 0.25, 8


def matches(collectives: pl.LazyFrame, ranks: pl.LazyFrame, *, trust_clocks: bool = True) -> pl.DataFrame:
    """Every collective of every rank, with its instance, wait and transfer where ranks could be matched.

    Adds to `collectives`: reason, instance, members, last_arrival, last_rank, lead, latency, wait, transfer,
    clock_error and assumed. Wait and transfer add up to end - arrival; they are null, and `reason` says why,
    where they cannot be told. The last rank is null when it leads by less than the clock error; `lead` is by
    how much it comes after the next to last. `latency` is the shortest stay of any member, which needs no
    common clock. `clock_error` is the largest of the members', and `assumed` says that nothing tells how many
    members there should be: the ranks that are here were taken for all. Without `trust_clocks`, times of
    different ranks are not compared, and ranks must have recorded equally many operations of a lane.
    """
    known = ranks.select("rank", "world_size", "clock_error", "groups").unique("rank", keep="first").collect()
    given = collectives.collect()
    if trust_clocks and given["group"].null_count() and _num_memberships(known) > 1:
        given = with_groups(given, known, synchronising=SYNCHRONISING, unknown_error=UNKNOWN_ERROR)
    reasons = _Reasons()
    rows = _Rows.of(given, known, reasons)
    keys = np.full((given.height, 5), -1)
    may = rows.reason == 0
    _by_sequence(rows, np.flatnonzero(may & rows.sequenced), keys)
    _by_place(rows, np.flatnonzero(may & ~rows.sequenced), keys, reasons, trust_clocks)
    return _split(given, rows, keys, reasons, trust_clocks)


class _Reasons:
    """Why rows cannot be matched, each once, by its number; 0 is none."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def numbers(self, texts: Iterable[str]) -> Int:
        return np.array([self.number(text) for text in texts], np.int64)

    def of(self, numbers: Int) -> pl.Series:
        return pl.Series([*self._numbers], dtype=pl.String)[numbers]


@dataclass
class _Rows:
    """What is asked of the rows, as numbers: `NEVER` is what is not known.

    `kind` is that of the instance, for which both ends of a send are `PAIRED`. Rows of one lane are those
    that count together; `lanes` names them. `assumed` says that nothing tells how many members there are.
    """

    rank: Int
    arrival: Int
    end: Int
    name: Int
    own_kind: Int
    kind: Int
    kinds: list[str]
    sends: Bool
    bytes: Int
    error: Int
    sequence: Int
    sequenced: Bool
    stream: Int
    lane: Int
    lanes: Callable[[int], str]
    turn: Int
    size: Int
    assumed: Bool
    of_all: Bool  # for want of a group
    reason: Int

    @classmethod
    def of(cls, given: pl.DataFrame, known: pl.DataFrame, reasons: _Reasons) -> Self:
        rank, peer, sequence, bytes_in, bytes_out, group_size = filled(
            given, ("rank", "peer", "sequence", "bytes_in", "bytes_out", "group_size")
        )
        kinds, own_kind = by_name(given["kind"])
        named = np.array([*kinds, ""])
        sends, pair = (named == "send")[own_kind], np.isin(named, PAIR)[own_kind]
        groups, group = by_name(given["group"])
        no_group = given["group"].is_null().to_numpy()
        # Groups count by what they are called. What is in none is in that of all ranks; a send need not be.
        texts = list(dict.fromkeys([WORLD, *groups]))
        number_of = {name: number for number, name in enumerate(texts)}
        text = np.array([number_of[name] for name in groups], np.int64)[group]
        text = np.where(no_group & ~pair, number_of[WORLD], text)
        source, target = (np.where(pair, np.where(sends, *ends), 0) for ends in ((rank, peer), (peer, rank)))
        first, lane = numbered(pair, source, target, text)

        def called(number: int) -> str:
            at = first[number]
            return f"{source[at]}>{target[at]} {texts[text[at]]}" if pair[at] else texts[text[at]]

        backup = np.where(sends, bytes_out, bytes_in)
        own = np.where(pair & ~sends, bytes_out, bytes_in)
        size, assumed, reason = _members_of(
            known, reasons, rank, peer, pair, group, groups, no_group, group_size
        )
        reason[pair & (peer == NEVER)] = reasons.number("its peer is unknown")
        reason[(named == "send-receive")[own_kind]] = reasons.number(IN_ONE_LAUNCH)
        reason[np.isin(named, LOCAL)[own_kind]] = reasons.number("it takes part in nothing with other ranks")
        ranks, error = filled(known, ("rank", "clock_error"))
        place, there = _place(ranks, rank)
        return cls(
            rank=rank,
            arrival=given["arrival"].to_numpy(),
            end=given["end"].to_numpy(),
            name=by_name(given["name"])[1],
            own_kind=own_kind,
            kind=np.where(pair, len(kinds), own_kind),
            kinds=[*kinds, PAIRED],
            sends=sends,
            bytes=np.where(pair & (own == NEVER), backup, own),
            error=np.where(there, np.append(error, NEVER)[place], NEVER),
            sequence=sequence,
            # A send and its receive count on their own.
            sequenced=(sequence != NEVER) & ~pair,
            stream=filled(given, ("stream",))[0],
            lane=lane,
            lanes=called,
            turn=_launched(given, lane, rank),
            size=size,
            assumed=assumed,
            of_all=no_group & ~pair,
            reason=reason,
        )

    def is_kind(self, names: Sequence[str], rows: Int) -> Bool:
        return np.array([name in names for name in self.kinds])[self.kind[rows]]


def _launched(given: pl.DataFrame, lane: Int, rank: Int) -> Int:
    """The order of the launches in each lane, by the ids that calls get one after the other; 0 in lanes whose
    ids do not rise along every stream, as streams run what they get in order."""
    stream, call = filled(given, ("stream", "correlation"))
    if not len(call):
        return call
    order = sorted_by(lane, rank, stream, given["arrival"].to_numpy(), given["end"].to_numpy())
    opens = changes_of(*(column[order] for column in (lane, rank, stream)))
    rises = np.empty(len(call), np.bool_)
    rises[order] = opens | np.append(True, np.diff(call[order]) >= 0)
    _, of = numbered(lane)
    return np.where(RowGroups(of).every((call > 0) & rises)[of], call, 0)


def _place(among: Int, asked: Int) -> tuple[Int, Bool]:
    """Where each of `asked` stands among some distinct numbers, and whether it does."""
    if not len(among):
        return np.zeros(len(asked), np.int64), np.zeros(len(asked), np.bool_)
    order = np.argsort(among)
    place = order[np.minimum(np.searchsorted(among, asked, sorter=order), len(among) - 1)]
    return place, among[place] == asked


def _members_of(
    known: pl.DataFrame,
    reasons: _Reasons,
    rank: Int,
    peer: Int,
    pair: Bool,
    group: Int,
    groups: list[str],
    no_group: Bool,
    group_size: Int,
) -> tuple[Int, Bool, Int]:
    """How many members each row's instance has, whether that is assumed, and why it cannot be matched."""
    present: set[int] = set(known["rank"].to_list())
    worlds: list[int] = known["world_size"].drop_nulls().to_list()
    # A job that does not say how many ranks it has, has at least those up to the highest here.
    world = max(worlds) if worlds else max([2, *(rank + 1 for rank in present)])
    several = len(groups) - bool(no_group.any()) > 1 or _num_memberships(known) > 1
    if len(present) < world:
        least = "" if worlds else "at least "
        unknown = f"only {len(present)} of {least}{world} ranks are here and its group is unknown"
    else:
        unknown = f"{NO_GROUP} and the job has several" if several else ""
    listed = [_members(name) for name in groups]
    here = numbered(group, rank)[0]
    those_here = np.maximum(2, np.bincount(group[here], minlength=len(groups)))
    told = np.array([len(ranks) or NEVER for ranks in listed], np.int64)[group]
    told = np.where(told == NEVER, group_size, told)
    size = np.where(told == NEVER, those_here[group], told)
    size = np.where(pair, 2, np.where(no_group, world, size))
    assumed = ~pair & np.where(no_group, not worlds, told == NEVER)
    absent = (
        f"ranks {_some(sorted(ranks - present))} of its group are not here" if ranks - present else ""
        for ranks in listed
    )
    reason = reasons.numbers(absent)[group]
    reason[no_group] = reasons.number(unknown)
    peers, of = np.unique(peer[pair], return_inverse=True)
    told_of = (
        "" if number in present else f"rank {number}, its peer, is not here" for number in peers.tolist()
    )
    reason[pair] = reasons.numbers(told_of)[of]
    if len(present) < 2:
        reason[:] = reasons.number(ONE_RANK)
    reason[size == 1] = 0
    return size, assumed, reason


def _num_memberships(known: pl.DataFrame) -> int:
    """How many different sets of ranks the job's process groups join, those of one rank apart."""
    told = known.drop_nulls("groups")
    if told.is_empty():  # its lists may be of no kind then
        return 0
    members = pl.col("groups").explode(empty_as_null=True).struct.field("ranks")
    listed = pl.col("ranks").list.sort().cast(pl.List(pl.String)).list.join(" ")
    several = told.lazy().select(members).filter(pl.col("ranks").list.len() > 1)
    return several.select(listed.n_unique()).collect().item()


def _members(group: str) -> set[int]:
    """The ranks that a group's name lists: '0 [0, 1, 2]'."""
    found = LISTED.search(group)
    return {int(rank) for rank in re.findall(r"[0-9]{1,9}", found[0])} if found else set()


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:6])) + (", …" if len(ranks) > 6 else "")


BY_SEQUENCE, FROM_START, FROM_END = range(3)


def _by_sequence(rows: _Rows, of: Int, keys: Int) -> None:
    """Key instances by the source's number. Operations issued together share it, and count on within it."""
    of, place, count = _counted(rows, of, rows.kind, rows.sequence)
    _, call = numbered(rows.lane[of], rows.kind[of], rows.sequence[of])
    keys[of] = np.stack([np.full(len(of), BY_SEQUENCE), rows.lane[of], call, place, count], axis=1)


def _counted(rows: _Rows, of: Int, *more: Int) -> tuple[Int, Int, Int]:
    """Some rows in order, each with its place among those of its rank and lane that are alike in `more`, and
    how many these are."""
    alike = [column[of] for column in (rows.lane, rows.rank, *more)]
    order = sorted_by(*alike, rows.turn[of], rows.arrival[of], rows.end[of])
    of = of[order]
    opens = np.flatnonzero(changes_of(*(column[order] for column in alike)))
    count = np.diff(np.append(opens, len(of)))
    return of, np.arange(len(of)) - np.repeat(opens, count), np.repeat(count, count)


def _by_place(rows: _Rows, of: Int, keys: Int, reasons: _Reasons, trust_clocks: bool) -> None:
    """Key instances by their place in the lane's order, counted from the start, or else from the end."""
    if not len(of):
        return
    of, place, count = _counted(rows, of)
    _, lane = numbered(rows.lane[of])
    lanes = RowGroups(lane)
    fewest, most = lanes.least(count), lanes.most(count)
    num, equal = lanes.distinct(rows.rank[of]), fewest == most
    forward = _agreement(rows, of, lane, place, num)
    swapped = _unswapped(rows, of, lane, place, num, equal & ~forward.same)
    if swapped is not None:
        place = swapped
        forward = _agreement(rows, of, lane, place, num)
    # Where all ranks of each lane have as many, a place is the same from either end.
    back = forward if equal.all() else _agreement(rows, of, lane, count - place, num)
    told = forward.told > 0.5
    likely, likely_back = (end.same & told & (end.inside > 0.5) for end in (forward, back))
    if trust_clocks:
        # Off by one, ranks leave before others come: where both ends agree, the possible one is the true one.
        from_start = likely & (equal | ~likely_back | (forward.inside > back.inside))
        from_end = likely_back & (~likely | (back.inside > forward.inside))
    else:  # a shift by one place would look like a clock offset of one step
        from_start, from_end = forward.same & told & equal, np.zeros(len(num), np.bool_)
    of_all = lanes.every(rows.of_all[of])
    apart = np.zeros(len(num), np.bool_)
    if trust_clocks and of_all.any():
        call = np.where(from_start[lane], place, count - place)
        apart = of_all & _left_apart(rows, of, lane, call, num)
        from_start, from_end = from_start & ~apart, from_end & ~apart
    held = (from_start | from_end)[lane]
    since = np.where(from_start[lane], FROM_START, FROM_END)
    call, nothing = np.where(from_start[lane], place, count - place), np.zeros(len(of), np.int64)
    keys[of[held]] = np.stack([since, rows.lane[of], call, nothing, nothing], axis=1)[held]
    why = np.zeros(lanes.num, np.int64)
    for at in np.flatnonzero(~(from_start | from_end)):
        if num[at] < 2:
            text = NOBODY_ELSE
        elif apart[at]:
            text = SEVERAL
        elif not told[at]:
            text = "what most of its group's operations do is unknown"
        elif equal[at]:
            text = CONTRADICT if forward.same[at] else DIFFER
        else:
            text = (
                f"ranks recorded between {fewest[at]} and {most[at]} operations of its group; which belong "
                "together is unclear"
                if not of_all[at]
                else f"{NO_GROUP}; ranks recorded between {fewest[at]} and {most[at]} operations of none"
            )
        why[at] = reasons.number(text)
    rows.reason[of] = why[lane]


class _Agreement(NamedTuple):
    """Per lane, whether all ranks agree at every place that all have, and the share of those places whose
    kind is told at all and whose times are possible."""

    same: Bool
    told: npt.NDArray[np.float64]
    inside: npt.NDArray[np.float64]


def _agreement(rows: _Rows, of: Int, lane: Int, place: Int, num: Int) -> _Agreement:
    first, at = numbered(lane, place)
    places = RowGroups(at)
    of_lane = lane[first]
    # All ranks of a lane have its first place, and its last.
    held = places.count() == num[of_lane]
    kinds = places.some(~rows.is_kind(["unknown"], of))
    error = places.most(rows.error[of])
    slack = np.where(error == NEVER, UNKNOWN_ERROR, 2 * error)
    overrun, timed = _overrun(rows, of, places)
    timed &= held
    all_held, all_timed = (np.bincount(of_lane[some], minlength=len(num)) for some in (held, timed))
    differ, told, possible = (
        np.bincount(of_lane[some], minlength=len(num))
        for some in (held & ~_agree(rows, of, places), held & kinds, timed & (overrun <= slack))
    )
    return _Agreement(differ == 0, told / np.maximum(all_held, 1), possible / np.maximum(all_timed, 1))


def _unswapped(rows: _Rows, of: Int, lane: Int, place: Int, num: Int, differ: Bool) -> Int | None:
    """The places, where ranks of these lanes only begin a few operations in another order; None without any.

    Threads that share a queue, as gloo's do, take operations in order and begin them in nearly that order.
    Then those that are alike follow each other, and each rank's take the places that they have on the first.
    """
    several = RowGroups(lane)
    differ = differ & (several.distinct(rows.stream[of]) > num)
    if not differ.any():
        return None
    at = np.flatnonzero(differ[lane])
    kept, rank = lane[at], rows.rank[of[at]]
    _, kind = numbered(kept, rows.kind[of[at]], rows.bytes[of[at]])
    order = sorted_by(kind, rank, place[at])
    opens = np.flatnonzero(changes_of(kind[order], rank[order]))
    count = np.diff(np.append(opens, len(at)))
    turn = np.empty(len(at), np.int64)
    turn[order] = np.arange(len(at)) - np.repeat(opens, count)
    one, same = numbered(kind, turn)
    alike, lanes = RowGroups(same), RowGroups(numbered(kept)[1])
    whole = lanes.every((alike.count() == num[kept[one]])[same])[lanes.of]
    leads = rank == lanes.least(rank)[lanes.of]
    taken = np.zeros(alike.num, np.int64)
    taken[same[leads]] = place[at][leads]
    near = lanes.every(np.abs(taken[same] - place[at]) <= NEARLY)[lanes.of]
    found = place.copy()
    found[at[whole & near]] = taken[same][whole & near]
    return found if (whole & near).any() else None


def _left_apart(rows: _Rows, of: Int, lane: Int, place: Int, num: Int) -> Bool:
    """Per lane, whether its ranks leave many of its synchronising collectives too far apart for one group.

    Two ranks are one group whatever they do. Each collective is compared with the one before it, so that it
    does not matter how far clocks are apart and drift.
    """
    first, at = numbered(lane, place)
    places, of_lane, end = RowGroups(at), lane[first], rows.end[of]
    since = np.diff(end, prepend=0)
    follows = ~changes_of(lane, rows.rank[of])
    timed = (places.count() == num[of_lane]) & places.every(follows & rows.is_kind(SYNCHRONISING, of))
    stay = places.least(end - rows.arrival[of])
    apart = places.most(since) - places.least(since) > np.maximum(LEFT_APART, OF_STAY * stay)
    many, all_timed = (np.bincount(of_lane[some], minlength=len(num)) for some in (timed & apart, timed))
    return (num > 2) & (all_timed >= OF_FEWEST) & (many >= IN_MANY * all_timed)


def _agree(rows: _Rows, of: Int, groups: RowGroups) -> Bool:
    """Whether the rows of one instance do the same to as many bytes.

    What a row does not say agrees with anything that has the same name: the first operations of a recording
    lose what describes them with their launch.
    """
    told, pair = ~rows.is_kind(["unknown"], of), rows.is_kind([PAIRED], of)
    num, length = groups.count(), rows.bytes[of]
    same_kind = (groups.distinct(rows.kind[of], told) <= 1) & (
        groups.every(told) | (groups.distinct(rows.name[of]) == 1)
    )
    ends = ~groups.every(pair) | (groups.distinct(rows.own_kind[of]) == num)
    same_bytes = groups.distinct(length, length != NEVER) <= 1
    return same_kind & ends & (same_bytes | ~groups.every(rows.is_kind([*SAME_BYTES, PAIRED], of)))


def _overrun(rows: _Rows, of: Int, groups: RowGroups) -> tuple[Int, Bool]:
    """How far the times of one instance's rows contradict each other, ns, and whether that can be told; at
    most 0 where they do not.

    Nobody leaves a synchronising collective before everybody is there, and no receive ends before its send
    began. One that lost its description is of the kind that the others of its name have.
    """
    sends, arrival, end = rows.sends[of], rows.arrival[of], groups.least(rows.end[of])
    together = groups.some(rows.is_kind(SYNCHRONISING, of))
    pair = groups.some(rows.is_kind([PAIRED], of)) & ~together
    sent = groups.some(sends)
    began = np.where(together, groups.most(arrival), groups.most(np.where(sends, arrival, NEVER)))
    told = together | (pair & sent)
    return np.where(told, began - end, 0), told | ~pair


class _Instances(NamedTuple):
    """What the members of each instance share, and why it does not count."""

    why: Int
    noise: Int
    number: Int  # by first arrival; `NEVER` where it does not count
    members: Int
    last_arrival: Int
    last_rank: Int  # `NEVER` where that is not known
    lead: Int
    latency: Int


def _instances(
    rows: _Rows, of: Int, keys: Int, groups: RowGroups, reasons: _Reasons, trust_clocks: bool
) -> _Instances:
    rank, arrival = rows.rank[of], rows.arrival[of]
    members, size, distinct = groups.count(), groups.most(rows.size[of]), groups.distinct(rank)
    noise = groups.most(rows.error[of])
    noise = np.where(noise == NEVER, 0, noise)
    overrun, _ = _overrun(rows, of, groups)
    why = np.zeros(groups.num, np.int64)
    # The first that applies comes last.
    if trust_clocks:
        why[overrun > 2 * noise] = reasons.number(CONTRADICT)
    why[~_agree(rows, of, groups)] = reasons.number(DIFFER)
    few = np.flatnonzero(distinct != size)
    first, of_few = numbered(distinct[few], size[few])
    told = (f"{distinct[at]} ranks recorded it, of the {size[at]} in its group" for at in few[first])
    why[few] = reasons.numbers(told)[of_few]
    why[(distinct == 1) & (size > 1)] = reasons.number(NOBODY_ELSE)
    why[distinct < members] = reasons.number("one rank appears twice in it")
    by_arrival = sorted_by(groups.of, arrival, rank)
    last = np.cumsum(members) - 1
    last_arrival, last_rank = arrival[by_arrival][last], rank[by_arrival][last]
    lead = last_arrival - arrival[by_arrival][np.maximum(last - 1, last - members + 1)]
    number = np.full(groups.num, NEVER)
    order = _in_turn(rows, of, keys, groups, groups.least(arrival))
    counting = order[why[order] == 0]
    number[counting] = np.arange(len(counting))
    return _Instances(
        why,
        noise,
        number,
        members,
        last_arrival,
        np.where(lead > noise, last_rank, NEVER),
        lead,
        groups.least(rows.end[of] - arrival),
    )


def _in_turn(rows: _Rows, of: Int, keys: Int, groups: RowGroups, first: Int) -> Int:
    """The instances by first arrival, those that arrive at once by how they are told apart, as text."""
    order = np.argsort(first, kind="stable")
    same = first[order][1:] == first[order][:-1]
    tied = order[np.flatnonzero(np.r_[same, False] | np.r_[False, same])]
    if not len(tied):
        return order
    row = np.zeros(groups.num, np.int64)
    row[groups.of] = of
    texts: list[str] = []
    for at in row[tied].tolist():
        how, lane, call, place, count = keys[at].tolist()
        if how == BY_SEQUENCE:
            call = f"{rows.kinds[rows.kind[at]]}|{rows.sequence[at]}|{place}/{count}"
        texts.append(f"{'spb'[how]}|{rows.lanes(lane)}|{call}")
    turn = np.zeros(groups.num, np.int64)
    turn[tied[sorted(range(len(texts)), key=texts.__getitem__)]] = np.arange(len(tied))
    return np.lexsort((turn, first))


def _split(
    given: pl.DataFrame, rows: _Rows, keys: Int, reasons: _Reasons, trust_clocks: bool
) -> pl.DataFrame:
    """The rows with what their instance says, and each member's time split at the last arrival."""
    of = np.flatnonzero(keys[:, 0] >= 0)
    _, group = numbered(*keys[of].T)
    groups = RowGroups(group)
    each = _instances(rows, of, keys, groups, reasons, trust_clocks)
    arrival, end, last = rows.arrival[of], rows.end[of], each.last_arrival[group]
    matched = each.number[group] != NEVER
    # Whoever leaves before the last comes did not wait for it: the root of a broadcast, a buffered send.
    left = (last - end > 2 * each.noise[group]) & ~rows.is_kind(SYNCHRONISING, of)
    why = each.why[group]
    why[matched & left] = reasons.number("it left before the last rank came, so it did not wait for that")
    rows.reason[of] = why
    split = matched & ~left
    wait = np.minimum(end, last) - arrival

    def told(values: Int, where: Bool, dtype: type[pl.DataType]) -> pl.Series:
        """The values of rows that have an instance, where they are known; null elsewhere."""
        whole = np.full(given.height, NEVER)
        whole[of[where]] = values[where]
        known = np.zeros(given.height, np.bool_)
        known[of[where]] = whole[of[where]] != NEVER
        column = pl.Series(np.where(known, whole, 0)).cast(dtype)
        return (
            column.zip_with(pl.Series(known), pl.Series([None], dtype=dtype)) if not known.all() else column
        )

    return given.with_columns(
        reason=reasons.of(rows.reason),
        instance=told(each.number[group], matched, pl.Int64),
        members=told(each.members[group], matched, pl.Int32),
        last_arrival=told(last, matched, pl.Int64),
        last_rank=told(each.last_rank[group], matched, pl.Int32),
        lead=told(each.lead[group], matched, pl.Int64),
        latency=told(each.latency[group], matched, pl.Int64),
        wait=told(wait, split, pl.Int64),
        transfer=told(end - arrival - wait, split, pl.Int64),
        clock_error=told(each.noise[group], matched, pl.Int64),
        assumed=told(rows.assumed[of].astype(np.int64), matched, pl.Boolean),
    )
