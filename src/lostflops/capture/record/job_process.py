"""The job as a child process that cannot tell that it has a parent more."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from lostflops.errors import BadOption, shown

PASSED_ON = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
FROM_THE_TERMINAL = 0x80  # SI_KERNEL: the terminal sent it to the whole group, so the job has it already


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command on our own standard streams; its exit status, or minus the signal that ended it.

    Signals sent to us are passed on: a scheduler knows this process only.
    """
    waited = PASSED_ON | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        try:
            job = os.posix_spawnp(
                command[0],
                list(command),
                dict(environment),
                setsigmask=before,
                setsigdef=[
                    signal.SIGPIPE,
                    signal.SIGXFSZ,
                ],  # Python ignores them; the job is to have its default
            )
        except OSError as error:
            raise BadOption(f"'{shown(command[0])}' could not be started: {error.strerror}.") from error
        while True:
            arrived = signal.sigwaitinfo(waited)
            if arrived.si_signo != signal.SIGCHLD:
                if arrived.si_code != FROM_THE_TERMINAL:
                    os.kill(job, arrived.si_signo)
                continue
            pid, status = os.waitpid(job, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave(status: int) -> NoReturn:
    """End this process as the job ended, by the same signal if it was one."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the job left its core; ours would be of no use
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status  # a signal that did not end us
    raise SystemExit(status)
