"""A real Slurm of four virtual nodes on this host, for tests: no root, no systemd, no file outside a folder.

Every daemon of it is a child of ours that the kernel ends when we end, however that happens (jobs are
cancelled before; after a SIGKILL of ours they end by themselves). All of them listen on 127.0.0.1 only, on
ports that were free.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODES = 4
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "sinfo", "squeue")
DAEMONS = "/usr/sbin:/sbin:/usr/local/sbin"  # not on everybody's PATH
PR_SET_PDEATHSIG = 1

CONF = """\
ClusterName=lostflops
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
JobRequeue=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
"""
# Distributions' defaults want cgroups, and a job of many tasks waits for as many cores.
NODE = "NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=2000"
PARTITION = "PartitionName=debug Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=YES\n"


def missing() -> str:
    """What has to be installed before the cluster can start; '' when all is there."""
    absent = [program for program in PROGRAMS if not _found(program)]
    if absent:
        return (
            f"there is no {', '.join(absent)}: `apt-get install --no-install-recommends {' '.join(PACKAGES)}`"
        )
    return ""


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{DAEMONS}")


class CannotStart(Exception):
    """The reason, in words."""


@dataclass(frozen=True)
class Cluster:
    """Four idle nodes. `environment` is what Slurm's commands need to find them."""

    folder: Path
    environment: Mapping[str, str]

    def __call__(self, *command: str, check: bool = True, **more: Any) -> str:
        """Run a command of Slurm; what it printed."""
        more = {"env": self.environment, **more}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, **more)
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stderr}")
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        words = self("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait(self, job: str, *states: str, seconds: float = 150) -> dict[str, str]:
        """Until the job is in one of the states, by default one that a job ends in."""
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self.state(job)["JobState"] in wanted, seconds, lambda: f"{wanted}: {self.state(job)}")
        return self.state(job)


def until(true: Callable[[], bool], seconds: float, what: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what()}")
        time.sleep(0.1)


@contextmanager
def cluster(folder: Path) -> Generator[Cluster]:
    """Start it in `folder`, whose path must be short: a socket's name has 107 bytes. Raises CannotStart."""
    why = missing()
    if why:
        raise CannotStart(why)
    host = socket.gethostname().partition(".")[0]
    try:
        socket.gethostbyname(host)
    except OSError:
        raise CannotStart(f"this host's own name, {host}, has no address: add it to /etc/hosts") from None
    controller, *ports = _free_ports(1 + NODES)
    for name in ("munge", "ctld", *(f"n{n}" for n in range(NODES))):
        (folder / name).mkdir(mode=0o755, parents=True)
    folder.chmod(0o755)  # munged insists
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    conf = folder / "slurm.conf"
    conf.write_text(
        CONF.format(host=host, user=getpass.getuser(), folder=folder, controller=controller)
        + "".join(f"NodeName=n{n} {NODE.format(host=host, port=port)}\n" for n, port in enumerate(ports))
        + PARTITION
    )
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "LOSTFLOPS"))
    }
    environment["SLURM_CONF"] = str(conf)
    with ExitStack() as stack:

        def daemon(*command: str) -> None:
            log = stack.enter_context((folder / f"{command[0]}.out").open("a"))
            process = subprocess.Popen(
                [_found(command[0]) or "", *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_us,
            )
            stack.callback(_stop, process)

        sockets = folder / "munge"
        daemon(
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={sockets}/socket"),
            *(f"--pid-file={sockets}/pid", f"--log-file={sockets}/log", f"--seed-file={sockets}/seed"),
        )
        _ready((sockets / "socket").exists, folder, "munged")
        daemon("slurmctld", "-D", "-f", str(conf))
        for n in range(NODES):
            daemon("slurmd", "-D", "-f", str(conf), "-N", f"n{n}")
        made = Cluster(folder, environment)
        idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
        _ready(lambda: made(*idle, check=False) == str(NODES), folder, "slurmd")
        stack.callback(_end_jobs, made)
        yield made


def _ready(true: Callable[[], bool], folder: Path, who: str) -> None:
    try:
        until(true, 15)
    except AssertionError:
        said = [line for log in sorted(folder.glob("*.out")) for line in log.read_text().splitlines()]
        raise CannotStart(f"{who} did not get ready within 15 s: {said[-3:]}") from None


def _end_jobs(made: Cluster) -> None:
    made("scancel", "--me", check=False)
    with suppress(AssertionError):
        until(lambda: not made("squeue", "--noheader", check=False), 10)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_us() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
