"""Times the collectives of torch.distributed, as one rank of a job: `python collectives.py SETTINGS RESULT`.

Runs in the interpreter of the job, with the standard library and torch alone. SETTINGS is a JSON object,
RESULT a file to which rank 0 appends a JSON line per measurement, so that a crash keeps what was measured
before it. A size is checked before it is timed, on values that differ by rank and element; what was timed is
written as the slowest rank's nanoseconds of each repeat.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import hashlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

torch: Any = import_module("torch")  # whose types differ between the versions this may meet
dist: Any = import_module("torch.distributed")
atexit.register(gc.freeze)  # what torch holds is not looked through as Python ends, for half a second

ITEM = 4  # bytes of a float32
STRIDE = 5  # values repeat after so many elements: what lands in the wrong place is seen
MOST = 1000  # ranks whose values differ; more would make sums that float32 does not hold exactly
LONGEST_WAIT = 300  # seconds for a rank that does not come
FEWEST = 5  # repeats of what takes long
PR_SET_PDEATHSIG = 1

Run = Callable[[], object]
Check = Callable[[], bool]


@dataclass(frozen=True)
class Ready:
    """An operation on buffers of its own: what counts as its size, how to run it and to see it was right."""

    bytes: int
    run: Run
    check: Check


@dataclass(frozen=True)
class Group:
    """Ranks that communicate; every rank of the job is in one group of each kind."""

    handle: Any
    ranks: Sequence[int]
    hosts: int

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def me(self) -> int:
        return self.ranks.index(dist.get_rank())

    @property
    def root(self) -> int:
        return self.ranks[0]


class TimedDevice:
    """The device and its clock."""

    def __init__(self, backend: str) -> None:
        self.cuda = backend == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.cuda else torch.device("cpu")

    def values(self, count: int, rank: int) -> Any:
        """Small whole numbers, so that sums are exact: those of `rank`."""
        some = torch.arange(STRIDE, dtype=torch.float32, device=self.device) + rank % MOST
        return some.repeat(-(-count // STRIDE))[:count].clone()

    def empty(self, count: int) -> Any:
        return torch.full((count,), -1.0, dtype=torch.float32, device=self.device)

    def times(self, run: Run, repeats: int, group: Group) -> list[int]:
        """Nanoseconds of each repeat on this rank."""
        if not self.cuda:
            found: list[int] = []
            for _ in range(repeats):
                dist.barrier(group=group.handle)
                start = time.perf_counter_ns()
                run()
                found.append(time.perf_counter_ns() - start)
            return found
        # One after the other on the stream: no rank begins a repeat before it has ended the one before.
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        torch.cuda.synchronize()
        dist.barrier(group=group.handle)
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return [round(1e6 * a.elapsed_time(b)) for a, b in pairwise(events)]

    def slowest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each number over all ranks."""
        both = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        return both.tolist()

    def all_agree(self, mine: bool) -> bool:
        return self.slowest([int(not mine)]) == [0]


def summed(of: TimedDevice, count: int, group: Group) -> Any:
    """What adding all ranks' values gives."""
    one = of.values(count, 0) * group.size
    return one + float(sum(rank % MOST for rank in group.ranks))


def all_reduce(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    if not in_place:
        return None
    count = max(1, size // ITEM)
    data = of.values(count, dist.get_rank())

    def check() -> bool:
        dist.all_reduce(data, group=group.handle)
        right = bool(torch.equal(data, summed(of, count, group)))
        data.zero_()  # sums of sums would overflow
        return right

    return Ready(ITEM * count, lambda: dist.all_reduce(data, group=group.handle), check)


def all_gather(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    part = max(1, size // ITEM // group.size)
    whole = of.empty(part * group.size)
    mine = whole[part * group.me : part * (group.me + 1)] if in_place else of.empty(part)
    run = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def check() -> bool:
        mine.copy_(of.values(part, dist.get_rank()))
        run(whole, mine, group=group.handle)
        return bool(torch.equal(whole, torch.cat([of.values(part, r) for r in group.ranks])))

    return Ready(ITEM * part * group.size, lambda: run(whole, mine, group=group.handle), check)


def reduce_scatter(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    part = max(1, size // ITEM // group.size)
    whole = of.empty(part * group.size)
    mine = whole[part * group.me : part * (group.me + 1)] if in_place else of.empty(part)
    run = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def check() -> bool:
        whole.copy_(of.values(part * group.size, dist.get_rank()))
        run(mine, whole, group=group.handle)
        expected = summed(of, part * group.size, group)[part * group.me : part * (group.me + 1)]
        right = bool(torch.equal(mine, expected))
        whole.zero_()
        return right

    return Ready(ITEM * part * group.size, lambda: run(mine, whole, group=group.handle), check)


def all_to_all(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    return None if in_place else _exchange(of, size, group, [1] * group.size)


def all_to_all_uneven(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    # Rank i sends j - i + 1 parts to rank j, counted around the ring: all send and receive the same in all.
    shares = [(j - group.me) % group.size + 1 for j in range(group.size)]
    return None if in_place else _exchange(of, size, group, shares)


def _exchange(of: TimedDevice, size: int, group: Group, shares: list[int]) -> Ready:
    """Send `shares[j]` parts to rank j of the group, and receive as the others do likewise."""
    unit = max(1, size // ITEM // sum(shares))
    sends = [unit * share for share in shares]
    even = len(set(shares)) == 1
    takes = sends if even else [unit * ((group.me - j) % group.size + 1) for j in range(group.size)]
    given, taken = of.empty(sum(sends)), of.empty(sum(takes))

    def run() -> None:
        splits = (None, None) if even else (takes, sends)
        dist.all_to_all_single(taken, given, *splits, group=group.handle)

    def check() -> bool:
        # What goes from a to b holds 1000 a + b: whoever gets it knows whose it should be.
        given.copy_(torch.cat([torch.full((n,), 1000.0 * group.me + j) for j, n in enumerate(sends)]))
        run()
        expected = torch.cat([torch.full((n,), 1000.0 * j + group.me) for j, n in enumerate(takes)])
        return bool(torch.equal(taken.cpu(), expected))

    return Ready(ITEM * sum(sends), run, check)


def broadcast(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    if not in_place:
        return None
    count = max(1, size // ITEM)
    data = of.values(count, dist.get_rank())

    def run() -> None:
        dist.broadcast(data, group.root, group=group.handle)

    def check() -> bool:
        run()
        return bool(torch.equal(data, of.values(count, group.root)))

    return Ready(ITEM * count, run, check)


def reduce(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    if not in_place:
        return None
    count = max(1, size // ITEM)
    data = of.values(count, dist.get_rank())

    def run() -> None:
        dist.reduce(data, group.root, group=group.handle)

    def check() -> bool:
        run()
        right = group.me != 0 or bool(torch.equal(data, summed(of, count, group)))
        data.zero_()
        return right

    return Ready(ITEM * count, run, check)


def gather(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    if in_place:
        return None
    part = max(1, size // ITEM // group.size)
    mine = of.values(part, dist.get_rank())
    parts = [of.empty(part) for _ in group.ranks] if group.me == 0 else None

    def run() -> None:
        dist.gather(mine, parts, dst=group.root, group=group.handle)

    def check() -> bool:
        run()
        pairs = zip(parts or (), group.ranks, strict=False)
        return all(torch.equal(got, of.values(part, rank)) for got, rank in pairs)

    return Ready(ITEM * part * group.size, run, check)


def scatter(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    if in_place:
        return None
    part = max(1, size // ITEM // group.size)
    mine = of.empty(part)
    parts = [of.values(part, rank) for rank in group.ranks] if group.me == 0 else None

    def run() -> None:
        dist.scatter(mine, parts, src=group.root, group=group.handle)

    def check() -> bool:
        run()
        return bool(torch.equal(mine, of.values(part, dist.get_rank())))

    return Ready(ITEM * part * group.size, run, check)


def send_receive(of: TimedDevice, size: int, group: Group, in_place: bool) -> Ready | None:
    """Every rank sends to the next and receives from the one before."""
    if in_place:
        return None
    count = max(1, size // ITEM)
    mine, got = of.values(count, dist.get_rank()), of.empty(count)
    to, come = group.ranks[(group.me + 1) % group.size], group.ranks[group.me - 1]

    def run() -> None:
        if group.size == 1:
            raise RuntimeError("a single rank has no other rank to send to")
        both = [
            dist.P2POp(dist.isend, mine, to, group.handle),
            dist.P2POp(dist.irecv, got, come, group.handle),
        ]
        for request in dist.batch_isend_irecv(both):
            request.wait()

    def check() -> bool:
        run()
        return bool(torch.equal(got, of.values(count, come)))

    return Ready(ITEM * count, run, check)


OPERATIONS = {
    "all-reduce": all_reduce,
    "all-gather": all_gather,
    "reduce-scatter": reduce_scatter,
    "all-to-all": all_to_all,
    "all-to-all-uneven": all_to_all_uneven,
    "broadcast": broadcast,
    "reduce": reduce,
    "gather": gather,
    "scatter": scatter,
    "send-receive": send_receive,
}
CHOICE = {"all-gather", "reduce-scatter"}  # whose result may lie in their input's buffer or elsewhere


def measure(of: TimedDevice, wanted: dict[str, Any], group: Group) -> Iterator[dict[str, Any]]:
    """Every operation at every size, then the barrier."""
    for name in wanted["operations"]:
        if name == "barrier":
            times = _timed(of, lambda: dist.barrier(group=group.handle), wanted, group)
            yield {"operation": name, "bytes": 0, "times": times}
            continue
        for in_place in (False, True):
            for size in wanted["sizes"]:
                found = _at(of, name, size, in_place, wanted, group)
                if found is None:
                    break
                yield found | ({"in_place": in_place} if name in CHOICE else {})
                if found.get("remark"):
                    break


def _at(
    of: TimedDevice, name: str, size: int, in_place: bool, wanted: dict[str, Any], group: Group
) -> dict[str, Any] | None:
    ready: Ready | None = None
    remark = ""
    right = True
    try:
        ready = OPERATIONS[name](of, size, group, in_place)
    except (RuntimeError, MemoryError) as error:
        remark = _said(error)
    if not of.all_agree(not remark):
        return {
            "operation": name,
            "bytes": size,
            "remark": remark or "another rank does not have the memory for it",
        }
    if ready is None:
        return None
    try:
        right = ready.check()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        remark = _said(error)
    if not of.all_agree(not remark):
        return {"operation": name, "bytes": ready.bytes, "remark": remark or "it failed on another rank"}
    right = of.all_agree(right)
    times = _timed(of, ready.run, wanted, group)
    return {"operation": name, "bytes": ready.bytes, "times": times, "correct": right}


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"


def _timed(of: TimedDevice, run: Run, wanted: dict[str, Any], group: Group) -> list[int]:
    """The slowest rank's time of each repeat; fewer repeats of what would take too long."""
    first = of.slowest(of.times(run, wanted["warm_up"], group))
    left = int(1e9 * wanted["seconds"] / max(1, sorted(first)[len(first) // 2]))
    repeats = max(min(FEWEST, wanted["repeats"]), min(wanted["repeats"], left))
    return of.slowest(of.times(run, repeats, group))


def host() -> str:
    """What tells machines apart and is the same for all ranks of one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return boot + platform.node()


def groups(of: TimedDevice) -> list[Group]:
    """All ranks; where there are several machines also those of each one, and one rank of each."""
    world, me = dist.get_world_size(), dist.get_rank()
    mine = int(hashlib.sha256(host().encode()).hexdigest()[:15], 16)
    where = [0] * world
    where[me] = mine
    places = of.slowest(where)
    hosts: dict[int, list[int]] = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place, []).append(rank)
    found = [Group(None, range(world), len(hosts))]
    if not 1 < len(hosts) < world:
        return found
    nodes = list(hosts.values())
    across = [[ranks[k] for ranks in nodes if k < len(ranks)] for k in range(max(map(len, nodes)))]
    for partition in (nodes, across):
        for ranks in partition:
            handle = dist.new_group(ranks)  # every rank has to call it for every group
            if me in ranks:
                found.append(Group(handle, ranks, len({places[r] for r in ranks})))
    return found


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone: nobody would read the result."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(words: Sequence[str]) -> None:
    end_with_parent()
    wanted: dict[str, Any] = json.loads(words[0])
    result = words[1]
    local = int(os.environ.get("LOCAL_RANK", "0"))
    backend = wanted["backend"] or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "nccl":
        torch.cuda.set_device(local % torch.cuda.device_count())
    dist.init_process_group(
        backend,
        init_method=wanted["meet"] or "env://",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=LONGEST_WAIT),
    )
    largest = wanted["largest"].get(backend)
    if largest:
        wanted["sizes"] = [size for size in wanted["sizes"] if size <= largest]
    of = TimedDevice(backend)
    about: dict[str, Any] = {"kind": "job", "backend": backend, "torch": torch.__version__}
    if of.cuda:
        version: Any = torch.cuda.nccl.version()
        about |= {"gpu": torch.cuda.get_device_name(), "nccl": ".".join(map(str, version))}
    about["threads"] = torch.get_num_threads()
    of_all = groups(of)
    ways = sum(0 if name == "barrier" else 1 + (name in CHOICE) for name in wanted["operations"])
    about["planned"] = len(of_all) * (ways * len(wanted["sizes"]) + ("barrier" in wanted["operations"]))
    with Path(result if dist.get_rank() == 0 else os.devnull).open("a", buffering=1) as file:
        file.write(json.dumps(about) + "\n")
        for group in of_all:
            for found in measure(of, wanted, group):
                found |= {"group_size": group.size, "hosts": group.hosts}
                file.write(json.dumps(found) + "\n")
    dist.barrier()  # a rank that leaves early can end others' groups with an error
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
