"""Sample this node's GPUs, cores, memory, disks and networks.

Samples until Ctrl-C, or while a command runs, whose output and exit status are passed through. The samples
become the table `counters` of the run. One monitor per node is enough; `lostflops record --monitor` starts
one, too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from lostflops.cli.output import files


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.usage = "lostflops monitor [options] [-- COMMAND]"
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        default="1",
        help="time between samples (default 1; 200ms; at least 0.1)",
    )
    parser.add_argument("--duration", metavar="SECONDS", help="end after so long (90, 2m, 1h)")
    parser.add_argument(
        "--output",
        metavar="RUN",
        type=Path,
        help="the run to add to, or to make (default runs/ and a name with the time)",
    )
    parser.add_argument("--csv", metavar="F", type=Path, help="write every sample to F at the end")
    parser.add_argument(
        "--html", metavar="F", type=Path, help="draw memory, utilisation and watts into F at the end"
    )
    parser.add_argument(
        "--port", metavar="PORT", help="serve OpenMetrics for Prometheus at 127.0.0.1:PORT, or ADDRESS:PORT"
    )
    parser.add_argument(
        "--textfile",
        metavar="F",
        type=Path,
        help="keep F, a .prom file, up to date for node_exporter's textfile collector",
    )
    parser.add_argument(
        "--dcgm", metavar="URL", help="also read the DCGM exporter there, as in http://127.0.0.1:9400/metrics"
    )
    parser.add_argument(
        "--from", metavar="RUN", dest="source", help="sample nothing; write --csv or --html of that run"
    )
    parser.add_argument("job", metavar="COMMAND", nargs=REMAINDER, help="a command to run while sampling")


def run(given: Namespace) -> None:
    from lostflops.errors import BadOption

    for target in filter(None, (given.csv, given.html, given.textfile)):
        files.check(target, [given.source] if given.source else [])
    if given.source is not None:
        if given.job or not (given.csv or given.html):
            raise BadOption(
                "--from reads a run and samples nothing.",
                "add --csv or --html to say what to write, and give no command.",
            )
        _write(Path(given.source), given)
        return
    _sample(given)


def _sample(given: Namespace) -> None:
    from lostflops.capture.record import job_process, recording
    from lostflops.errors import LostflopsError, as_argument, shown
    from lostflops.machine.monitor import openmetrics
    from lostflops.machine.monitor import process as monitor

    command: list[str] = given.job[1:] if given.job[:1] == ["--"] else given.job
    if command:
        recording.check(command)
    address, port = monitor.listening(given.port) if given.port is not None else ("127.0.0.1", None)
    wanted = monitor.Sampling(
        run=given.output or Path("runs") / f"monitor-{time.strftime('%Y%m%d-%H%M%S')}",
        interval=monitor.interval(given.interval),
        duration=None if given.duration is None else monitor.duration(given.duration),
        address=address,
        port=port,
        textfile=given.textfile,
        dcgm=None if given.dcgm is None else monitor.exporter(given.dcgm),
    )
    sampler = monitor.start(wanted)
    status = 0
    try:
        sampler.wait_ready()
        _say(f"sampling {sampler.beginning['series']} values of this node -> {shown(wanted.run)}")
        for text in sampler.beginning["missing"]:
            _say(f"monitor: {text}")
        if port is not None:
            _say(f"metrics: {openmetrics.url(address, sampler.beginning['port'])}")
        if command:
            status = job_process.run(command, os.environ)
        else:
            signal.signal(signal.SIGTERM, _ended)
            sampler.process.wait()
    except KeyboardInterrupt:
        if not sampler.beginning:
            raise
    finally:
        sampler.stop()
    _say(*sampler.lines())
    try:
        _write(wanted.run, given)
    except LostflopsError as error:
        if not command:
            raise
        _say(str(error))
    _say(f"next: lostflops why {as_argument(wanted.run)}")
    if command:
        job_process.leave(status)


def _write(run: Path, given: Namespace) -> None:
    """The CSV and the drawing of what a run's monitors saw."""
    if not (given.csv or given.html):
        return
    import polars as pl

    from lostflops import run_folder
    from lostflops.errors import CannotAnswer
    from lostflops.ingest import job
    from lostflops.report.machines.monitor import page

    monitors = sorted(run.glob(f"{run_folder.NODES}/{run_folder.MONITOR}")) if run.is_dir() else []
    trace = job.open(monitors or run, allow_missing_ranks=True)
    counters = trace.table("counters")
    if counters is None:
        raise CannotAnswer("monitor", trace.absence("counters"))
    if given.csv:
        utc = (pl.col("end") + trace.manifest.origin_ns).cast(pl.Datetime("ns", "UTC"))
        named = counters.select(utc.dt.to_string("iso:strict").alias("time"), *_COLUMNS)
        with files.replacing(given.csv) as file:
            from lostflops.export.spreadsheet import spreadsheet_safe

            spreadsheet_safe(named.collect()).write_csv(file)
    if given.html:
        drawn = page(trace)
        if drawn is None:
            raise CannotAnswer("monitor", "the run holds no samples that are drawn")
        with files.replacing(given.html) as file:
            file.write_text(drawn, "utf-8")


_COLUMNS = ("start", "end", "rank", "device", "metric", "instance", "value", "unit", "added")


def _ended(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(*lines: str) -> None:
    if lines:
        print(*lines, sep="\n", file=sys.stderr, flush=True)
