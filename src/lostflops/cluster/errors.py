"""What can be wrong with a Dask cluster, each as a user has to hear it."""

from __future__ import annotations

from pathlib import Path

from lostflops.errors import LostflopsError, shown


class ClusterLost(Exception):
    """The cluster cannot go on, and `error` says why.

    It is no LostflopsError on its way: a page takes that for one question that cannot be answered, and would
    go on without the others.
    """

    def __init__(self, error: LostflopsError) -> None:
        super().__init__(error.message)
        self.error = error


class NoScheduler(LostflopsError):
    """An address where no Dask scheduler answers."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"No Dask scheduler answers at '{shown(address)}': {shown(why)}.",
            "start one with `dask scheduler`, and its workers with `dask worker ADDRESS`; or let lostflops "
            "start both on this machine: `--dask local`.",
        )


class SchedulerGone(LostflopsError):
    """A scheduler that was there."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"The Dask scheduler of '{shown(where)}' is gone: it ended, or the connection to it broke.",
            "start it again and repeat the command: nothing was left half done.",
        )


class NoWorkers(LostflopsError):
    """A scheduler without workers."""

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(
            f"The Dask cluster '{shown(where)}' has had no worker for {seconds:.0f} s.",
            "start some with `dask worker ADDRESS`, and look at what the last ones said as they ended: often "
            "memory ran out.",
        )


class WorkersKilled(LostflopsError):
    """A task that ended every worker that took it."""

    def __init__(self, times: int) -> None:
        super().__init__(
            f"{times} Dask workers ended while they did the same task: most likely their memory ran out.",
            "give each worker more memory and fewer threads, or start fewer workers on a machine.",
        )


class WorkerWithoutLostflops(LostflopsError):
    """Workers that cannot import lostflops."""

    def __init__(self, who: str) -> None:
        super().__init__(
            f"{shown(who)} cannot import lostflops.",
            "start it with the Python of this command, or run `pip install lostflops` where it runs.",
        )


class OtherLostflops(LostflopsError):
    """A worker whose answers might be others than ours."""

    def __init__(self, worker: str, theirs: str, ours: str) -> None:
        super().__init__(
            f"The Dask worker at {shown(worker)} runs {shown(theirs)}, and this is {ours}.",
            "install the same packages on both, and start the worker again.",
        )


class UnseenByWorker(LostflopsError):
    """A file or folder that a worker does not have, or has another one of."""

    def __init__(self, worker: str, path: str | Path, what: str = "does not see") -> None:
        super().__init__(
            f"The Dask worker at {shown(worker)} {what} '{shown(path)}'.",
            "workers read traces and runs by themselves: put both where all of them see the same files. "
            "LOSTFLOPS_CACHE=/shared/folder chooses where runs are kept, `lostflops import --output` where "
            "one is.",
        )


class NoQueue(LostflopsError):
    """A batch system that does not start workers."""

    def __init__(self, said: str) -> None:
        super().__init__(
            f"Slurm starts no Dask workers: {shown(said)}.",
            "run this where `sbatch` works; queue, account, cores and memory of a worker stand in "
            "~/.config/dask/jobqueue.yaml.",
        )


class NoMpi(LostflopsError):
    """Processes that MPI did not start, or too few."""

    def __init__(self, said: str) -> None:
        super().__init__(
            f"MPI gives no Dask cluster here: {shown(said)}",
            "start at least 3 processes, one is the scheduler and one this command: "
            "`mpirun -n 8 lostflops why RUN --dask mpi`, or the same with `srun`.",
        )
