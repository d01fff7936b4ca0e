"""Rows in which a thread runs no code of the job, by how they are called: it sleeps, waits or is at files."""

from __future__ import annotations

import re

SLEEPS, WAITS, FILES = "sleeps", "waits for another thread or process", "reads or writes files"
PIPES = "reads or writes files, pipes or sockets"  # calls of the system that do not say which
RUNNABLE, NO_CORE = "runnable", "waits for a free core"  # what Linux calls a thread that could run
_SLEEP = re.compile(r"^(?:time\.sleep|sleep|usleep|(?:clock_)?nanosleep)$")
# What a thread is in while another thread or process makes it wait.
_BLOCKED = re.compile(
    r"^(?:_thread\.R?[Ll]ock\.acquire|_thread\.(?:lock|RLock)\.__enter__|_queue\.SimpleQueue\.get"
    r"|_multiprocessing\.SemLock\.(?:acquire|__enter__)|select\.(?:e?poll|kqueue)\.(?:poll|control)|select|poll"
    r"|(?:\S*/)?zmq[./]\S*?(?:\.|\.py\(\d+\): )_?(?:recv\w*|poll|zmq_poll)"
    r"|MPI_\w+|uc[ps]_\w+"
    r"|ray\S*\.CoreWorker\.(?:get|wait)\w*"
    r"|(?:_socket\.)?socket\.(?:recv\w*|accept)|(?:posix\.)?wait(?:pid|id|3|4)?"
    # The C library and Linux, as Nsight Systems names their calls.
    r"|pthread_(?:cond_(?:timed|clock)?wait|mutex_(?:timed|clock)?lock|barrier_wait|join|rwlock_\w*lock"
    r"|spin_lock)|sem_(?:timed|clock)?wait|futex|p?poll|pselect6?|epoll_p?wait2?|recv(?:from|m?msg)?|accept4?"
    r"|(?:\S*/)?(?:threading|queue|selectors|subprocess|multiprocessing/\w+|concurrent/futures/\w+|asyncio/\w+)"
    r"\.py\(\d+\): (?:wait\w*|_?wait|acquire|join|get|result|select|_?poll|_recv\w*|recv\w*|__next__|next))$"
)
_AT_FILES = re.compile(
    r"^(?:(?:posix|os)\.(?:fsync|fdatasync|sync|p?readv?|p?writev?|sendfile|open|close|l?stat|listdir|scandir|rename"
    r"|replace|unlink|remove)|open|io\.open|_io\.(?:open|(?!BytesIO|StringIO)\w+\.(?:read\w*|write\w*|flush|close))"
    # The C library and Linux.
    r"|f(?:data)?sync|p(?:read|write)(?:64|v2?|64v2?)?|f(?:read|write|open|flush|close|gets)(?:64|_unlocked)?"
    r"|open(?:at)?(?:64)?)$"
)
_ON_HANDLES = re.compile(r"^(?:readv?|writev?|send(?:to|m?msg)?|sendfile(?:64)?)$")
_INSIDE = re.compile(r"^(?P<what>.+?) in \S+\(\d+\): .+$")
# Calls that read, write, pack or hash, during which CPython lets other threads run.
_LETS_GO = re.compile(r"^(?:_io|posix|os|zlib|bz2|lzma|_socket|_ssl|_hashlib|fcntl)\.")


def stands_still(name: str) -> str | None:
    """What a thread does in a row in which it runs no code of the job, or None.

    >>> stands_still("time.sleep in train.py(3): step"), stands_still("_thread.lock.acquire")
    ('sleeps', 'waits for another thread or process')
    >>> stands_still("os.fsync in train.py(3): log")
    'reads or writes files'
    >>> stands_still("pthread_cond_wait"), stands_still("read")
    ('waits for another thread or process', 'reads or writes files, pipes or sockets')
    >>> stands_still("_pickle.Pickler.dump in train.py(3): step")
    """
    inside = _INSIDE.match(name)
    what = inside["what"] if inside else name
    return (
        NO_CORE
        if what == RUNNABLE
        else SLEEPS
        if _SLEEP.match(what)
        else WAITS
        if _BLOCKED.match(what)
        else FILES
        if _AT_FILES.match(what)
        else PIPES
        if _ON_HANDLES.match(what)
        else None
    )


def lets_others_run(name: str) -> bool:
    """Whether a thread in such a row leaves Python's lock to others.

    >>> [lets_others_run(name) for name in ("time.sleep", "_io.BufferedWriter.write", "train.py(3): tally")]
    [True, True, False]
    """
    return stands_still(name) is not None or _LETS_GO.match(name) is not None
