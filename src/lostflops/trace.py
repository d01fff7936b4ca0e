"""One job's tables on disk: a folder of Parquet files, opened lazily, sliced by rank and step.

    RUN/run.json                     what was imported, from what, and how good it is
    RUN/<table>/rank=<r>/part-*.parquet

Times on disk are the source's own clock, so that ranks can be written independently; opening a trace
subtracts the run's origin and adds each rank's clock offset. A run appears under its name only when it is
whole: it is written beside its place and renamed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import polars as pl

from .errors import CannotWrite, DamagedStore, NewerStore, NoSuchStep, OutputExists
from .tables import TABLES

FORMAT = 1
MANIFEST = "run.json"


class Quality(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fact about how good a rank's recording is. `level` is 'note' or 'warning'."""

    rank: int | None
    name: str
    count: int
    text: str
    level: str = "note"


class Source(msgspec.Struct, frozen=True):
    """A file that was imported: name without its folder, size, and a hash that identifies it."""

    name: str
    bytes: int
    identity: str
    format: str


class Manifest(msgspec.Struct):
    """What `run.json` holds."""

    format: int
    lostflops: str
    clock: str  # what the source's own clock counts from
    origin_ns: int
    sources: list[Source]
    tables: list[str]
    num_events: int
    quality: list[Quality]
    offsets: dict[str, int] = {}  # rank -> ns to add
    absent: dict[str, str] = {}  # table -> why this run does not have it


class Trace:
    """The tables of one job.

    `table(name)` gives a lazy frame on the run's clock, or None where the run does not have that table;
    `absence(name)` then says why. A trace sliced with `select` shows only those ranks and steps: an event
    belongs to the slice when it overlaps one of the rank's selected steps.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        ranks: frozenset[int] | None = None,
        steps: tuple[int, int] | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.ranks = ranks
        self.steps = steps
        self._windows: pl.DataFrame | None = None

    @classmethod
    def open(cls, path: Path) -> Trace:
        """Open a stored run. Raises NewerStore or DamagedStore when it cannot be read."""
        try:
            raw = (path / MANIFEST).read_bytes()
            found = msgspec.json.decode(raw, type=dict[str, object]).get("format")
            if found != FORMAT:
                raise NewerStore(path, found, FORMAT)
            manifest = msgspec.json.decode(raw, type=Manifest)
        except OSError as error:
            raise DamagedStore(path, f"{MANIFEST} is missing or unreadable ({error.strerror}).") from error
        except msgspec.MsgspecError as error:
            raise DamagedStore(path, f"{MANIFEST} is not what lostflops writes.") from error
        for name in manifest.tables:
            if name not in TABLES or not (path / name).is_dir():
                raise DamagedStore(path, f"its table '{name}' is missing.")
        return cls(path, manifest)

    def has(self, name: str) -> bool:
        return name in self.manifest.tables

    def absence(self, name: str) -> str:
        """Why `name` is not here, and how to record it."""
        why = self.manifest.absent.get(name, f"the '{name}' table is not in this trace")
        return f"{why}; record it with {TABLES[name].record_with}"

    def select(self, ranks: frozenset[int] | None = None, steps: tuple[int, int] | None = None) -> Trace:
        """The same run, seen through some ranks and an inclusive range of step numbers.

        Raises NoSuchStep when no step of the run lies in that range.
        """
        chosen = Trace(self.path, self.manifest, ranks or self.ranks, steps or self.steps)
        if steps is not None:
            present = self._whole("steps")
            numbers: list[int] = []
            if present is not None:
                numbers = present.select(pl.col("step").unique().sort()).collect()["step"].to_list()
            if not any(steps[0] <= n <= steps[1] for n in numbers):
                listed = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
                raise NoSuchStep(f"{steps[0]}-{steps[1]}", listed)
        return chosen

    def table(self, name: str) -> pl.LazyFrame | None:
        frame = self._whole(name)
        if frame is None:
            return None
        if self.ranks is not None:
            frame = frame.filter(pl.col("rank").is_in(sorted(self.ranks)))
        if self.steps is None or name == "ranks":
            return frame
        if name == "steps":
            return frame.filter(pl.col("step").is_between(*self.steps))
        windows = self._step_extent()
        return (
            frame.join(windows.lazy(), on="rank", how="inner", maintain_order="left")
            .filter((pl.col("end") > pl.col("_from")) & (pl.col("start") < pl.col("_to")))
            .drop("_from", "_to")
        )

    def _step_extent(self) -> pl.DataFrame:
        if self._windows is None:
            steps = self._whole("steps")
            assert steps is not None and self.steps is not None
            self._windows = (
                steps.filter(pl.col("step").is_between(*self.steps))
                .group_by("rank")
                .agg(_from=pl.col("start").min(), _to=pl.col("end").max())
                .collect()
            )
        return self._windows

    def _whole(self, name: str) -> pl.LazyFrame | None:
        if name not in self.manifest.tables:
            return None
        table = TABLES[name]
        frame = pl.scan_parquet(
            self.path / name / "**" / "*.parquet",
            hive_partitioning=True,
            hive_schema={"rank": pl.Int32},
            glob=True,
        ).select(list(table.schema))
        offsets = {int(rank): ns for rank, ns in self.manifest.offsets.items() if ns}
        shift: pl.Expr = pl.lit(-self.manifest.origin_ns, dtype=pl.Int64)
        if offsets:
            shift = shift + pl.col("rank").replace_strict(offsets, default=0, return_dtype=pl.Int64)
        return frame.with_columns(pl.col(c) + shift for c in table.times)


@contextmanager
def writing(target: Path) -> Generator[Path]:
    """A folder to fill; it takes `target`'s place only when the block ends without an error.

    A killed import leaves at most a folder beginning with '.importing-', which nothing reads.
    Raises CannotWrite when the place cannot be written, OutputExists when it holds something else.
    """
    taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if taken and not (target / MANIFEST).is_file():
        raise OutputExists(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".importing-", dir=target.parent))
    except OSError as error:
        raise CannotWrite(target, error) from error
    try:
        yield folder
        folder.chmod(0o755)
        _swap(folder, target)
    except OSError as error:
        raise CannotWrite(target, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(folder: Path, target: Path) -> None:
    if not target.exists():
        try:
            folder.rename(target)
        except OSError:
            if (target / MANIFEST).is_file():  # somebody else imported the same traces meanwhile
                return
            raise
        return
    aside = Path(tempfile.mkdtemp(prefix=".importing-", dir=target.parent))
    old = aside / "old"
    target.rename(old)
    try:
        folder.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_part(folder: Path, table: str, rank: int, frame: pl.DataFrame, part: int = 0) -> None:
    """Write some rows of one rank's table into a run that is being made."""
    place = folder / table / f"rank={rank}"
    place.mkdir(parents=True, exist_ok=True)
    frame.drop("rank", strict=False).write_parquet(
        place / f"part-{part}.parquet", compression="lz4", statistics=False
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `run.json`, the last file of a run."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    with (folder / MANIFEST).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
