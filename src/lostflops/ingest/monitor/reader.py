"""The samples of `lostflops monitor` to the table `counters`: one source per node.

A sample is of a node, a row of `counters` of a rank. What a GPU shows belongs to the rank whose process ran
on it, if the monitor saw exactly one; what a rank's process takes to that rank; all else to the node's first
rank. A running total becomes what was added between two readings, a level holds for the time since the
reading before it. Times are the node's own UTC, which profilers use too.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import polars as pl

from lostflops import run_folder
from lostflops.errors import NotATrace
from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.monitor.files import ROWS, facts, readings, step_logs
from lostflops.ingest.part import Part, write_table
from lostflops.store.trace import Quality
from lostflops.tables import NAME

CHAIN = ("session", "metric", "device", "instance")
# Metrics whose instance is the rank that they are of.
OF_RANKS = ["rank_resident", "rank_threads", "rank_workers", "rank_workers_resident", "rank_cpu"]
# Between two readings the wall clock may gain or lose this much and this share: NTP slews by 500 ppm. More
# is a clock that was set.
SLEWED, SLEWED_SHARE = 1_000_000, 1e-3


def recognises(path: Path) -> bool:
    if path.name != run_folder.MONITOR or not path.is_dir():
        return False
    named = any((path / name).is_file() for name in (run_folder.FACTS, run_folder.TAIL))
    return named or any(path.glob(run_folder.SEGMENTS))


def read(path: Path, folder: Path) -> list[Part]:
    """The counters of a node, one part per rank that they belong to. Raises NotATrace or Unreadable."""
    told = facts(path)
    hosts = [f["host"] for f in told if f["kind"] == "monitor" and isinstance(f.get("host"), str)]
    logs = _logs(path, hosts[-1] if hosts else None)
    home = min(logs, key=_order)["rank"] if logs else None
    ranks = [log["rank"] for log in logs]
    owners = _owners(told, logs)
    devices = {f["device"]: f for f in told if f["kind"] == "device" and type(f.get("device")) is int}
    shares: dict[int | None, _Share] = {}
    torn, damaged, times_set = 0, list[str](), 0
    # A file at a time: the samples of a day do not fit into memory.
    carried = pl.DataFrame(schema=ROWS)
    for found in readings(path):
        torn += found.torn
        damaged += [found.damaged] if found.damaged else []
        rows = pl.concat([carried, found.rows.sort("session", "monotonic", maintain_order=True)])
        carried = rows.unique(CHAIN, keep="last", maintain_order=True).filter(
            pl.col("session") == pl.col("session").max()
        )
        counters, more = _over_time(rows)
        times_set += more
        owner = pl.col("device").replace_strict(owners, default=home, return_dtype=pl.Int32)
        named = pl.col("instance").cast(pl.String).cast(pl.Int32, strict=False)
        owned = counters.with_columns(
            _owner=pl.when(pl.col("metric").cast(pl.String).is_in(OF_RANKS) & named.is_in(ranks))
            .then(named)
            .when(pl.col("device").is_null())
            .then(home)
            .otherwise(owner)
        )
        for (rank,), mine in owned.partition_by("_owner", as_dict=True, maintain_order=True).items():
            shares.setdefault(rank, _Share(folder / str(len(shares)))).add(mine.drop("_owner"))
    if not shares:
        raise NotATrace(path, "it holds fewer than two samples of a monitor.")
    quality = list(_quality(torn, damaged, times_set))
    without = sorted({device for share in shares.values() for device in share.devices} - set(owners))
    if without and home is not None:
        text = (
            f"which rank ran on GPU {', '.join(map(str, without))} of its node was not seen; "
            f"what they show stands at rank {home}"
        )
        quality.append(Quality(home, "GPU without rank", len(without), text))
    parts: list[Part] = []
    for rank, share in shares.items():
        share.write()
        part = Part(
            folder=str(share.folder),
            rank=rank,
            rank_source="assigned" if rank is None else "monitor",
            start=share.start,
            end=share.end,
            num_events=share.num_rows,
            tables=["counters"],
            host=hosts[-1] if hosts else None,
            facts={"source": "monitor", **_of(devices, share.devices)},
            quality=quality if not parts else [],
            beside=True,
        )
        parts.append(part)
    return parts


class _Share:
    """What of a node's counters belongs to one rank, on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start, self.end = 2**63 - 1, -(2**63)
        self.num_rows = self.num_files = 0
        self.devices: set[int] = set()

    def add(self, rows: pl.DataFrame) -> None:
        write_table(self.folder / "files" / str(self.num_files), "counters", rows)
        self.num_files += 1
        self.num_rows += rows.height
        self.start = min(self.start, _int(rows["start"].min()))
        self.end = max(self.end, _int(rows["end"].max()))
        self.devices |= set(rows["device"].drop_nulls().unique().to_list())

    def write(self) -> None:
        """Make one table of the files."""
        files = [self.folder / "files" / str(n) / "counters.parquet" for n in range(self.num_files)]
        pl.scan_parquet(files, glob=False).sink_parquet(
            self.folder / "counters.parquet", compression="lz4", statistics=False
        )
        shutil.rmtree(self.folder / "files")


def _over_time(rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The rows of `counters`, and how often the wall clock was set meanwhile.

    The first reading of each chain gives none: it is only what the next is compared with.
    """

    def before(column: str) -> pl.Expr:
        return pl.col(column).shift().over(CHAIN)

    passed = pl.col("monotonic") - before("monotonic")
    gained = pl.col("wall") - before("wall") - passed
    was_set = gained.abs() > SLEWED + SLEWED_SHARE * passed
    start = pl.when(was_set).then(pl.col("wall") - passed).otherwise(before("wall"))
    paired = rows.with_columns(_passed=passed, _set=was_set, _before=before("count"), _start=start).filter(
        pl.col("_passed") > 0
    )
    # A total that is smaller than before has wrapped or begun anew: what was added meanwhile is not known.
    added = pl.when(pl.col("count") >= pl.col("_before")).then(pl.col("count") - pl.col("_before"))
    valued = paired.select(
        "device",
        pl.col("metric", "instance", "unit").cast(NAME),
        start=pl.min_horizontal("_start", "wall"),
        end="wall",
        added="counts",
        value=pl.when("counts").then(added.cast(pl.Float64) / pl.col("per")).otherwise("level"),
        _set="_set",
        _wall="wall",
    ).filter(pl.col("value").is_not_null())
    times_set = valued.filter("_set")["_wall"].n_unique()
    return valued.drop("_set", "_wall").sort("start", "end", maintain_order=True), times_set


def _logs(path: Path, host: str | None) -> list[dict[str, Any]]:
    """The step logs of the monitor's host, whatever its launcher calls that node."""
    if not fnmatch(path.parent.name, run_folder.NODES):
        return []
    every = [log for node in sorted(path.parent.parent.glob(run_folder.NODES)) for log in step_logs(node)]
    return [log for log in every if host is not None and log.get("host") == host]


def _order(log: Mapping[str, Any]) -> tuple[int, int]:
    local = log.get("local")
    return (local if type(local) is int else 0, log["rank"])


def _owners(told: list[dict[str, Any]], logs: list[dict[str, Any]]) -> dict[int, int]:
    """The rank of each GPU on which just one rank's processes were seen.

    A rank that has a GPU of its own is no candidate for another: ranks often touch the first GPU in passing.
    """
    ranks = {log["pid"]: log["rank"] for log in logs if type(log.get("pid")) is int}
    candidates: dict[int, set[int]] = {}
    for fact in told:
        pids = fact.get("pids")
        if fact["kind"] == "processes" and type(fact.get("device")) is int and isinstance(pids, list):
            running = [pid for pid in cast("list[object]", pids) if isinstance(pid, int)]
            seen = {ranks[pid] for pid in running if pid in ranks}
            candidates.setdefault(fact["device"], set()).update(seen)
    owners: dict[int, int] = {}
    while True:
        settled = set(owners.values())
        new = {
            device: next(iter(left))
            for device, seen in candidates.items()
            if device not in owners and len(left := seen - settled) == 1
        }
        # Two GPUs with the same single rank are both its.
        if not new:
            return owners
        owners.update(new)


def _of(devices: Mapping[int, Mapping[str, Any]], mine: set[int]) -> dict[str, Any]:
    """What is known of the GPU of a part, if it is of one."""
    names = {devices.get(device, {}).get("gpu") for device in mine}
    memory = {devices.get(device, {}).get("memory") for device in mine}
    name = names.pop() if len(names) == 1 else None
    size = memory.pop() if len(memory) == 1 else None
    return {
        "device": next(iter(mine)) if len(mine) == 1 else None,
        "gpu": name if isinstance(name, str) else None,
        "memory_bytes": size if type(size) is int and 0 < size < 2**62 else None,
    }


def _quality(torn: int, damaged: Any, times_set: int) -> list[Quality]:
    told: list[Quality] = []
    if torn:
        text = "lines of a monitor's file are not whole: it was killed, or the disk was full"
        told.append(Quality(None, "samples lost", torn, text))
    if damaged:
        text = f"of a monitor cannot be read: {', '.join(damaged)}"
        told.append(Quality(None, "segments damaged", len(damaged), text, "warning"))
    if times_set:
        text = "the node's clock was set while the monitor ran; its samples keep their own length"
        told.append(Quality(None, "clock set", times_set, text, "warning"))
    return told


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def looks_like(path: Path) -> bool:
    """Whether a name found in a folder is that of a monitor's samples."""
    return path.name.lower() == run_folder.MONITOR and path.is_dir() and (path / run_folder.FACTS).exists()


def _asked(asked: Reading) -> list[Part]:
    return read(asked.path, asked.folder)


READER = Reader(
    "monitor",
    "samples of a monitor (monitor/)",
    looks_like,
    lambda path, _: recognises(path),
    _asked,
)
