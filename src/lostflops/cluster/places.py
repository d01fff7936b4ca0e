"""Where the workers are: on this machine, at a scheduler that runs, in a queue of Slurm, or in an MPI job."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lostflops.errors import BadOption, MissingExtra, shown

from .errors import ClusterLost, NoMpi, NoQueue, NoScheduler
from .workers import Progress, Workers

if TYPE_CHECKING:
    from distributed import Client

    Where = str | Client

ANSWERS_WITHIN = 10.0  # seconds, of a scheduler
PATIENCE = 30.0  # seconds without any worker, where no queue has to let them in
SLURM_WORKERS = 4
# Of a worker in a queue, where jobqueue.yaml does not say.
CORES, MEMORY = 4, "16 GiB"


@contextmanager
def connected(where: Where, tell: Progress | None = None) -> Generator[Workers]:
    """The workers at `where`: 'local', 'slurm' or 'mpi', the first two with ':N' for how many; the address
    of a scheduler; or a client that is connected already, which stays.

    Raises a LostflopsError that says what to do, also for what happens to the workers in the block.
    """
    try:
        import distributed
    except ImportError:
        raise MissingExtra("`--dask`", "cluster") from None
    quiet = logging.CRITICAL if not os.environ.get("LOSTFLOPS_DEBUG") else logging.INFO
    logging.getLogger("distributed").setLevel(quiet)
    try:
        if isinstance(where, distributed.Client):
            connected: Any = where
            yield Workers(where, str(connected.scheduler.address), tell, PATIENCE)
            return
        with _started(where) as (client, patience):
            yield Workers(client, where, tell, patience)
    except ClusterLost as lost:
        raise lost.error from lost


def _started(where: str) -> AbstractContextManager[tuple[Client, float | None]]:
    """A client, and how long it may be without a worker."""
    if "://" in where:
        return _at(where)
    name, colon, number = where.partition(":")
    if name not in STARTED or (colon and (name == "mpi" or not number.isdecimal() or not int(number))):
        raise BadOption(
            f"There is no Dask cluster '{shown(where)}'.",
            "say local, slurm or mpi, local:4 or slurm:4 for the number of workers, or the address of a "
            "scheduler such as tcp://node1:8786.",
        )
    return STARTED[name](int(number) if colon else None)


@contextmanager
def _at(address: str) -> Generator[tuple[Client, float | None]]:
    with _client(address, address) as client:
        yield client, PATIENCE


@contextmanager
def _client(at: Any, where: str) -> Generator[Client]:
    from distributed import Client

    try:
        client = Client(at, timeout=ANSWERS_WITHIN, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise NoScheduler(where, f"no connection within {ANSWERS_WITHIN:.0f} s") from error
    except ValueError as error:
        raise NoScheduler(where, str(error)) from error
    with client:
        yield client


@contextmanager
def _here(number: int | None) -> Generator[tuple[Client, float | None]]:
    """Workers on this machine: processes of one thread each, which share its cores between them."""
    made: Any = import_module("distributed").LocalCluster
    cores = len(os.sched_getaffinity(0))
    number = number or cores
    own: Any = {
        **os.environ,
        "POLARS_MAX_THREADS": str(max(1, cores // number)),
        "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical",
    }
    said = None if os.environ.get("LOSTFLOPS_DEBUG") else subprocess.DEVNULL
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="lostflops-workers-"))
        cluster: Any = stack.enter_context(
            made(
                n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
            )
        )
        client = stack.enter_context(_client(cluster, "local"))
        command = worker_command(cluster.scheduler_address, scratch, 1 / number)
        for _ in range(number):
            worker = subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            stack.callback(_end, worker)
        yield client, PATIENCE


def worker_command(address: str, scratch: str, share: float) -> list[str]:
    """What starts a worker of one thread that may take so much of the memory.

    `LocalCluster`'s own workers would import the program that asks once more.
    """
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"]
    return [*command, "--nthreads=1", f"--memory-limit={share:.6f}", f"--local-directory={scratch}"]


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


@contextmanager
def _in_slurm(number: int | None) -> Generator[tuple[Client, float | None]]:
    try:
        with warnings.catch_warnings():  # it announces what it will rename
            warnings.simplefilter("ignore")
            jobqueue: Any = import_module("dask_jobqueue")
    except ImportError:
        raise MissingExtra("`--dask slurm`", "cluster") from None
    configured: Any = import_module("dask.config")
    asked = {
        name: otherwise
        for name, otherwise in (("cores", CORES), ("memory", MEMORY), ("processes", 1))
        if configured.get(f"jobqueue.slurm.{name}", None) is None
    }
    try:
        with jobqueue.SLURMCluster(**asked) as cluster:
            cluster.scale(jobs=number or SLURM_WORKERS)
            with _client(cluster, "slurm") as client:
                yield client, None
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        raise NoQueue(str(error)) from error


@contextmanager
def _in_mpi(number: int | None) -> Generator[tuple[Client, float | None]]:
    """The processes that `mpirun` or `srun` started: one becomes the scheduler, one goes on here, all others
    work and end in this call."""
    try:
        mpi: Any = import_module("dask_mpi")
    except ImportError:
        raise MissingExtra("`--dask mpi`", "mpi") from None
    except RuntimeError as error:  # mpi4py finds no MPI
        raise NoMpi(f"{error}.") from error
    too_small: Any = import_module("dask_mpi.exceptions").WorldTooSmallException
    try:
        mpi.initialize(nthreads=1, dashboard=False)
    except too_small as error:
        raise NoMpi(str(error)) from error
    with _client(None, "mpi") as client:
        yield client, PATIENCE


STARTED: dict[str, Callable[[int | None], AbstractContextManager[tuple[Client, float | None]]]] = {
    "local": _here,
    "slurm": _in_slurm,
    "mpi": _in_mpi,
}
