"""Recipes, the page and imports on the workers of a Dask cluster are what they are here, byte for byte.

One scheduler and two workers serve all tests of this file; a test that kills a worker starts another one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from distributed import Client, LocalCluster

import lostflops
from lostflops.cli import main
from lostflops.cluster import errors, places, reading, tasks, workers
from lostflops.cluster.session import ClusterSession
from lostflops.errors import BadOption, LostflopsError, MissingExtra, NotATrace
from lostflops.ingest import job
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.recipes import named, recipes
from lostflops.session import Session, Skipped
from lostflops.store.at_once import CHOICE
from lostflops.store.trace import Trace


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@dataclass
class Dask:
    """A scheduler in this process, and workers that can be started and killed."""

    cluster: Any
    scratch: Path
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.cluster.scheduler_address

    def start(self, **environment: str) -> None:
        command = places.worker_command(self.address, str(self.scratch), 0.2)
        more = {**os.environ, "POLARS_MAX_THREADS": "1", **environment}
        quiet = subprocess.DEVNULL
        worker = subprocess.Popen(command, env=more, stdout=quiet, stderr=quiet)
        self.started[worker.pid] = worker

    def pids(self) -> dict[str, int]:
        """The process of each worker, once there are two."""
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            return client.run(os.getpid)

    def kill_one_at_work(self, pids: dict[str, int]) -> None:
        """End a worker at once that has tasks and has not answered, and start another one."""
        known = self.cluster.scheduler.workers
        until(lambda: any(worker.processing for worker in known.values()))
        address = next(address for address, worker in known.items() if worker.processing)
        worker = self.started.pop(pids[address])
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.start()


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dask]:
    with started(tmp_path_factory.mktemp("scratch")) as made:
        made.start()
        made.start()
        made.pids()
        yield made


class started(ExitStack):  # noqa: N801 - reads as what it gives
    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self.scratch = scratch

    def __enter__(self) -> Dask:  # type: ignore[override]
        super().__enter__()
        cluster = self.enter_context(
            LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0")
        )
        made = Dask(cluster, self.scratch)
        self.callback(lambda: [(worker.kill(), worker.wait()) for worker in made.started.values()])
        return made


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up job of four ranks in two stages, one of them slow."""
    folder = tmp_path_factory.mktemp("traces")
    made = SimulatedJob(strategy("pp2-dp2-m2", 4), steps=3, layers=1)
    simulate(made, folder, fault=with_fault(made, "slow-rank"))
    return folder


@pytest.fixture(scope="module")
def run(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job as it is imported here."""
    stored = tmp_path_factory.mktemp("runs") / "run"
    job.open(traces, output=stored)
    return stored


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def forgotten(run: Path) -> Path:
    """The run without the answers that it keeps."""
    for answer in (run / "answers").glob("*"):
        answer.unlink()
    return run


def written(table: pl.DataFrame) -> bytes:
    return table.write_json().encode() + table.write_csv().encode() + repr(table.schema).encode()


def test_an_import_is_the_same(dask: Dask, traces: Path, run: Path, tmp_path: Path) -> None:
    assert main(["import", str(traces), "--output", str(tmp_path / "run"), "--dask", dask.address]) == 0
    assert files(tmp_path / "run") == {k: v for k, v in files(run).items() if not k.startswith("answers")}


def test_every_recipe_says_the_same(dask: Dask, run: Path) -> None:
    trace = Trace.open(forgotten(run))
    here = {name: Session(trace).run(name) for name in recipes()}
    forgotten(run)
    asked = 0
    with places.connected(dask.address) as found:
        there = ClusterSession(trace, found)
        there.begin(recipes())
        for name, known in here.items():
            said = there.run(name)
            if isinstance(known, Skipped):
                assert said == known
            else:
                assert not isinstance(said, Skipped), name
                assert written(said.table) == written(known.table), name
                assert said.findings == known.findings, name
                asked += 1
    assert asked > 30 and {named(name).scope for name in here} == {"rank", "job"}


def test_some_steps_and_ranks_say_the_same(dask: Dask, run: Path) -> None:
    whole = Trace.open(run)
    with places.connected(dask.address) as found:
        for name, ranks in (("pipeline_bubble", None), ("idle_summary", None), ("kernel_summary", {1, 2})):
            trace = whole.select(None if ranks is None else frozenset(ranks), (3, 4))
            forgotten(run)
            here = Session(trace).run(name)
            forgotten(run)
            there = ClusterSession(trace, found).run(name)
            assert written(there.table) == written(here.table), name  # type: ignore[union-attr]


def test_a_worker_answers_of_a_small_run_by_the_engine_that_the_session_takes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streaming engine may round the last digit of a share otherwise."""
    engines: list[str | None] = []
    monkeypatch.setattr(
        tasks.batches, "answered", lambda *_: engines.append(os.environ.get(CHOICE)) or pl.DataFrame()
    )
    opened = Trace.open(run)
    monkeypatch.setattr("lostflops.session.asking.SMALL", opened.manifest.num_events)
    question = tasks.Question(tasks.Slice.of(opened), "stream_waits", {}, None)
    tasks.answer(question, {})
    monkeypatch.setattr("lostflops.session.asking.SMALL", opened.manifest.num_events - 1)
    tasks.answer(question, {})
    assert engines == ["in-memory", None]


def test_options_reach_the_workers_and_kept_answers_are_used(
    dask: Dask, run: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    outputs: list[bytes] = []
    for where in ([], ["--dask", dask.address], ["--dask", dask.address]):
        assert main(["recipe", "gpu-gaps", str(run), "--at-least-ns", "3000", "--format", "csv", *where]) == 0
        outputs.append(capfdbinary.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2] and outputs[0].count(b"\n") > 3


def test_the_page_is_the_same_in_every_form(
    dask: Dask, run: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    said: list[list[bytes]] = []
    for where in ([], ["--dask", dask.address]):
        html, text = tmp_path / "page.html", tmp_path / "page.json"
        forgotten(run)
        assert main(["why", str(run), "--all", "--html", str(html), "--json", str(text), *where]) == 0
        said.append([capfdbinary.readouterr().out, html.read_bytes(), text.read_bytes()])
    assert said[0] == said[1]
    assert b"predicted" in said[0][2], "the replay, too, ran on a worker"


def test_the_same_from_python(dask: Dask, run: Path, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(run.parent / "cache"))
    with Client(dask.address, set_as_default=False) as client:
        trace = lostflops.open(traces, dask=client)
        assert trace.path.is_relative_to(run.parent / "cache")
        ledger = lostflops.ask(trace, "step_ledger", dask=client)
        page = str(lostflops.why(run, dask=client))
    forgotten(trace.path)
    assert written(ledger) == written(lostflops.ask(trace, "step_ledger"))
    assert page == str(lostflops.why(run))


class killing:  # noqa: N801
    """Told of progress for the first time, it kills a worker."""

    def __init__(self, dask: Dask) -> None:
        self.dask, self.killed, self.pids = dask, False, dask.pids()

    def __call__(self, what: str, share: float) -> None:
        if not self.killed:
            self.killed = share < 1
            self.dask.kill_one_at_work(self.pids)


def test_a_worker_killed_in_an_import_changes_no_byte(
    dask: Dask, traces: Path, run: Path, tmp_path: Path
) -> None:
    killed = killing(dask)
    with places.connected(dask.address, killed) as found:
        job.open(traces, output=tmp_path / "run", read_with=partial(reading.read_all, found))
    assert killed.killed
    forgotten(run)
    assert files(tmp_path / "run") == files(run)


def test_a_worker_killed_in_a_recipe_changes_no_byte(dask: Dask, run: Path) -> None:
    trace = Trace.open(run)
    known = Session(trace).run("idle_summary")
    forgotten(run)
    killed = killing(dask)
    with places.connected(dask.address, killed) as found:
        said = ClusterSession(trace, found).run("idle_summary")
    assert killed.killed
    assert written(said.table) == written(known.table)  # type: ignore[union-attr]


def test_the_first_file_that_cannot_be_read_is_told(dask: Dask, traces: Path, tmp_path: Path) -> None:
    whole = sorted(traces.glob("*.gz"))[0].read_bytes()
    (tmp_path / "rank1.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rank2.json").write_text("{")
    with pytest.raises(LostflopsError) as here:
        job.open(tmp_path)
    with places.connected(dask.address) as found, pytest.raises(LostflopsError) as there:
        job.open(tmp_path, read_with=partial(reading.read_all, found))
    assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))


# What a worker runs at its start: it hides a folder, lostflops, or which lostflops it is.
SPOILT = """
import os, sys
how, hidden = os.environ["SPOILT"], os.environ.get("HIDDEN", "")
if how == "without":
    class Without:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "lostflops":
                raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    sys.meta_path.insert(0, Without())
elif how == "older":
    import lostflops.version
    lostflops.version.__version__ = "0.0.1"
elif how == "blind":
    stat, opened = os.stat, open
    def blind(path, *given, **more):
        if str(path).startswith(hidden):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return stat(path, *given, **more)
    os.stat = blind
"""


def spoilt(
    tmp_path: Path, how: str, ask: Callable[[workers.Workers], object], hidden: Path | None = None
) -> str:
    """What somebody is told who asks a cluster whose only worker is spoilt."""
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "sitecustomize.py").write_text(SPOILT)
    path = os.pathsep.join([str(tmp_path / "spoilt"), os.environ.get("PYTHONPATH", "")])
    with started(tmp_path) as made:
        made.start(PYTHONPATH=path, SPOILT=how, HIDDEN=str(hidden))
        with pytest.raises(LostflopsError) as told, places.connected(made.address) as found:
            ask(found)
    return str(told.value)


def test_a_worker_without_lostflops_is_named(tmp_path: Path, run: Path) -> None:
    said = spoilt(tmp_path, "without", lambda w: ClusterSession(Trace.open(run), w).run("step_totals"))
    assert "The Dask worker at tcp://127.0.0.1:" in said and "cannot import lostflops" in said
    assert "pip install lostflops" in said


def test_a_worker_with_another_lostflops_is_named(tmp_path: Path, run: Path) -> None:
    said = spoilt(tmp_path, "older", lambda w: ClusterSession(Trace.open(run), w).run("step_totals"))
    assert "runs lostflops 0.0.1 (" in said and f"and this is {tasks.identity()}" in said


def test_a_worker_that_does_not_see_the_traces_is_named(tmp_path: Path, traces: Path) -> None:
    def ask(found: workers.Workers) -> None:
        job.open(traces, output=tmp_path / "run", read_with=partial(reading.read_all, found))

    said = spoilt(tmp_path, "blind", ask, traces)
    assert "does not see" in said and str(traces) in said and "LOSTFLOPS_CACHE=/shared/folder" in said
    assert not (tmp_path / "run").exists()


def test_a_worker_that_sees_another_run_is_told(dask: Dask, run: Path) -> None:
    trace = Trace.open(run)
    forgotten(run)
    with pytest.raises(errors.UnseenByWorker, match="sees another run at"), \
            places.connected(dask.address) as found:  # fmt: skip
        session = ClusterSession(trace, found)
        session._slice = tasks.Slice(session._slice.path, "of another one", None, None)
        session.run("step_totals")


def test_a_scheduler_that_is_not_there_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "ANSWERS_WITHIN", 0.3)
    assert main(["why", str(run), "--dask", "tcp://127.0.0.1:9"]) == 2
    said = capsys.readouterr().err
    assert "No Dask scheduler answers at 'tcp://127.0.0.1:9'" in said and "Hint: start one with" in said


def test_a_scheduler_without_workers_is_told(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PATIENCE", 0.2)
    monkeypatch.setattr(workers, "GLANCE", 0.1)
    forgotten(run)
    with started(tmp_path) as made, pytest.raises(errors.NoWorkers, match="has had no worker"), \
            places.connected(made.address) as found:  # fmt: skip
        ClusterSession(Trace.open(run), found).run("step_totals")


@pytest.mark.parametrize("where", ["locl", "local:", "local:0", "local:x", "mpi:4", "", "slurm:-1"])
def test_where_has_to_be_a_cluster(where: str) -> None:
    with pytest.raises(BadOption, match="There is no Dask cluster"), places.connected(where):
        pass


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"lostflops\[cluster\]"), places.connected("local"):
        pass


def test_errors_keep_their_class_on_the_way() -> None:
    said = tasks.TaskSaid(error=("NotATrace", "m", "h"))
    with pytest.raises(NotATrace, match="m"):
        said.got()


def test_importing_lostflops_or_its_command_line_imports_no_dask() -> None:
    code = "import sys, lostflops, lostflops.cli as c; c.parser(); c.parser(['why']); "
    code += "print([m for m in sys.modules if m.split('.')[0] in ('dask', 'distributed', 'fsspec')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_local_workers_start_and_end_by_themselves(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "ledger.csv"
    forgotten(run)
    command = [sys.executable, "-m", "lostflops", "recipe", "step-totals", str(run), f"--output={output}"]
    began = time.monotonic()
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*command, "--dask", "local:1"], env=own, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), time.monotonic() - began
    assert output.read_text().startswith("rank,")
    left = subprocess.run(
        ["pgrep", "-f", f"{tmp_path}/lostflops-workers-"], capture_output=True, text=True
    ).stdout
    assert not left.strip(), "no worker outlives the command"


def test_the_processes_of_an_mpi_job_are_a_cluster(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("dask_mpi", reason="there is no dask-mpi: `pip install dask-mpi`")
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun: `apt-get install openmpi-bin`")
    output = tmp_path / "totals.csv"
    forgotten(run)
    command = ["lostflops", "recipe", "step-totals", str(run), f"--output={output}", "--dask", "mpi"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["mpirun", "--oversubscribe", "-n", "3", *command],
        env={**os.environ, **root, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert output.read_text().startswith("rank,")
