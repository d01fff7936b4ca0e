"""Which traces a command is about: the arguments that commands share, and how they open a job."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lostflops import run_folder, units
from lostflops.errors import NoRun, NothingThere

if TYPE_CHECKING:
    from lostflops.cluster.workers import Workers
    from lostflops.session import Session
    from lostflops.store.trace import Trace

Progress = Callable[[str, float], None]


def add_paths(parser: ArgumentParser, newest: bool = False, needed: bool = True) -> None:
    """The arguments that name traces. With `newest`, none have to: `newest_run` finds some."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+" if needed and not newest else "*",
        help="a recorded run, a trace file, a folder of traces, or a glob in quotes"
        + (" (default: the newest run in runs/ or here)" if newest else ""),
    )
    add_leniency(parser)


def add_path(parser: ArgumentParser, name: str) -> None:
    """The arguments that name one job by one path."""
    parser.add_argument(
        "path", metavar=name, help="a recorded run, a trace file, a folder of traces, or a glob in quotes"
    )
    add_leniency(parser)


def add_leniency(parser: ArgumentParser) -> None:
    """The arguments that let go on with what is damaged or missing."""
    parser.add_argument(
        "--salvage", action="store_true", help="read a truncated trace up to its last whole event"
    )
    parser.add_argument(
        "--allow-missing-ranks",
        action="store_true",
        help="go on when traces of some ranks are missing; time spent waiting for them is not reported",
    )


def add_steps(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--steps", metavar="A-B", help="only steps A to B, both included; a single number is one step"
    )


def add_dask(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dask",
        metavar="WHERE",
        help="use the workers of a Dask cluster: local, slurm, mpi, or the address of a scheduler "
        "(tcp://…); local:4 and slurm:4 start 4",
    )


def newest_run(here: Path) -> str:
    """The run in `here` or its folder `runs` that was recorded or imported last. Raises NoRun.

    Where there is none, folders of traces in `runs` count, and then `here` itself if traces lie in it.
    """
    inside = _folders(here / "runs")
    for folders, made in (
        ([here, *_folders(here), *inside], _recorded),
        (inside, _traced),
        ([here], _traced),
    ):
        found = [(time, str(folder)) for folder in folders if (time := made(folder)) is not None]
        if found:
            return max(found)[1]
    raise NoRun


def _folders(place: Path) -> list[Path]:
    with suppress(OSError):
        return [folder for folder in place.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    return []


def _recorded(folder: Path) -> float | None:
    """When a run was recorded or imported, or None for a folder that is no run."""
    for name in (run_folder.RECORDING, run_folder.MANIFEST):
        with suppress(OSError):
            return (folder / name).stat().st_mtime
    return None


def _traced(folder: Path) -> float | None:
    """When the newest trace in a folder was written, or None where it has none."""
    from lostflops.ingest.formats import looks_like_trace

    with suppress(OSError):
        return max(
            (file.stat().st_mtime for file in folder.iterdir() if looks_like_trace(file)), default=None
        )
    return None


@contextmanager
def workers(given: Namespace, tell: Progress | None = None) -> Generator[Workers | None]:
    """The workers that `--dask` names, None without it."""
    if given.dask is None:
        yield None
        return
    from lostflops.cluster.places import connected

    with connected(given.dask, tell) as found:
        yield found


def session(trace: Trace, workers: Workers | None) -> Session:
    """What answers about the trace: on the workers, where there are some."""
    if workers is None:
        from lostflops.session import Session

        return Session(trace)
    from lostflops.cluster.session import ClusterSession

    return ClusterSession(trace, workers)


def opened(
    given: Namespace,
    progress: Progress | None = None,
    output: Path | None = None,
    workers: Workers | None = None,
) -> Trace:
    """The job that the arguments name, sliced to the steps they ask for; read by `workers`, if any."""
    if "" in given.paths:  # an unset shell variable, which Path would take for the current folder
        raise NothingThere("")
    steps = None if getattr(given, "steps", None) is None else units.span(given.steps, "--steps", "steps")
    from lostflops.ingest import job, sources

    read_all: sources.ReadAll = sources.read_all
    if workers is not None:
        from lostflops.cluster import reading

        read_all = partial(reading.read_all, workers)
    trace = job.open(
        given.paths,
        salvage=given.salvage,
        allow_missing_ranks=given.allow_missing_ranks,
        output=output,
        progress=progress,
        read_with=read_all,
    )
    trace.given = tuple(given.paths)
    return trace.select(steps=steps) if steps else trace


def again(paths: Sequence[str], given: Namespace, steps: tuple[int, int] | None) -> str:
    """What to type after a command's name to ask about the same steps of the same job, for a shell."""
    from lostflops.report.words.safe import typed

    flags = [flag for flag in ("salvage", "allow_missing_ranks") if getattr(given, flag, False)]
    return typed(paths, steps, [f"--{flag.replace('_', '-')}" for flag in flags])
