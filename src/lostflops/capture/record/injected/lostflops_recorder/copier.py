"""The process that sends a pod's recording to the collector: a script that imports nothing of ours.

Files that grow are sent as they grow, the others once they are whole. When this process is new it asks the
collector what it has. The job does not wait for it, but for ten seconds at most when it ends.
"""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

POLL = 0.2
LOG_EVERY = 10.0  # seconds; a thousand pods must not keep the collector busy with a line at a time
AT_ONCE = 1 << 20
GIVE_UP = 10.0  # a collector that was silent for so long is not waited for when the job ends
IDLE = 60.0
SETTLES = 2.0  # a file without a change for so long is whole
GROWS = (".jsonl", ".log")


class Collector:
    """The other end. Any of its methods may raise OSError or HTTPException; the next call connects anew."""

    def __init__(self, url: str, authority: str, token: str) -> None:
        self._where = urlsplit(url)
        self._context = ssl.create_default_context(cadata=authority or None)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, int]:
        """The status and the size that the collector has."""
        if self._connection is None:
            host, port = self._where.hostname or "", self._where.port
            self._connection = (
                http.client.HTTPSConnection(host, port, timeout=10, context=self._context)
                if self._where.scheme == "https"
                else http.client.HTTPConnection(host, port, timeout=10)
            )
        try:
            self._connection.request(method, quote(path), body, {**self._headers, **headers})  # pyright: ignore[reportArgumentType]
            answer = self._connection.getresponse()
            answer.read()
            return answer.status, int(answer.headers.get("Lostflops-Size") or 0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Copier:
    """Sends the files below `run`. The last three parts of its path name job, pod and container."""

    def __init__(self, run: str, collector: Collector) -> None:
        self._run, self._collector = run, collector
        self._prefix = "/" + "/".join(run.rstrip("/").split("/")[-3:])
        self._sent: dict[str, int] = {}  # of a file that grows, its bytes; of another, 1
        self._logs_due = 0.0
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}  # a file as it was last, and since when

    def copy(self, ending: bool) -> bool:
        """Send what is new; whether there was anything. What is being written waits, but for the end."""
        news = False
        paths = sorted(self._files())
        for path in paths:
            name = os.path.relpath(path, self._run)
            if not path.endswith(GROWS) and name not in self._sent and (ending or self._settled(path)):
                self._whole(path, name)
                news = True
        if news or ending or time.monotonic() > self._logs_due:
            self._logs_due = time.monotonic() + LOG_EVERY
            for path in paths:
                if path.endswith(GROWS):
                    news |= self._grown(path, os.path.relpath(path, self._run))
            self._collector.close()
        return news

    def _settled(self, path: str) -> bool:
        """Whether a file is whole. The time of day, which may be set meanwhile, does not tell."""
        now, known = time.monotonic(), os.stat(path)
        state = known.st_size, known.st_mtime_ns
        if self._seen.get(path, (None,))[0] != state:
            self._seen[path] = state, now
        return path.endswith(".json") or now - self._seen[path][1] > SETTLES

    def _files(self) -> Iterator[str]:
        for folder, _, names in os.walk(self._run):
            for name in names:
                if not name.startswith("."):
                    yield os.path.join(folder, name)

    def _grown(self, path: str, name: str) -> bool:
        if name not in self._sent:
            _, self._sent[name] = self._collector.ask("HEAD", f"{self._prefix}/{name}")
        news = False
        with open(path, "rb") as file:
            while True:
                file.seek(self._sent[name])
                chunk = file.read(AT_ONCE)
                if not chunk:
                    return news
                at = self._sent[name]
                status, size = self._collector.ask(
                    "PUT", f"{self._prefix}/{name}", chunk, **{"Lostflops-Offset": str(at)}
                )
                if status not in (200, 409):
                    raise OSError(f"the collector answered {status}")
                if size == at:
                    raise OSError("the collector took nothing")
                self._sent[name] = size
                news = True

    def _whole(self, path: str, name: str) -> None:
        packed = path
        if name.endswith(".json"):
            packed = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.gz")
            name += ".gz"
        status, _ = self._collector.ask("HEAD", f"{self._prefix}/{name}")
        if status == 404:
            try:
                if packed != path:
                    with open(path, "rb") as source, gzip.open(packed, "wb", compresslevel=2) as target:
                        shutil.copyfileobj(source, target, AT_ONCE)
                with open(packed, "rb") as file:
                    size = {"Content-Length": str(os.stat(packed).st_size)}
                    status, _ = self._collector.ask("PUT", f"{self._prefix}/{name}", file, **size)
            finally:
                if packed != path and os.path.exists(packed):
                    os.unlink(packed)
        if status not in (200, 507):  # a collector that is full stays so: this file is not sent again
            raise OSError(f"the collector answered {status}")
        self._sent[os.path.relpath(path, self._run)] = 1


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def say(run: str, error: Exception) -> None:
    with open(os.path.join(run, "lostflops.log"), "a") as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} copying results: {error}\n")


def main(run: str, starter: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of a pod that is to end: the job may still write
    url, authority, token = (
        os.environ.get(f"LOSTFLOPS_COLLECTOR{part}", "") for part in ("", "_CA", "_TOKEN")
    )
    try:
        copier = Copier(run, Collector(url, authority, token))
    except (OSError, ValueError) as error:  # what is wrong with a certificate is an OSError
        say(run, error)
        return
    busy = heard = time.monotonic()
    said = False
    while True:
        asked = [name for name in os.listdir(run) if name.startswith(".finish-")]
        now = time.monotonic()
        try:
            if copier.copy(bool(asked)):
                busy = now
            heard = now
            done = True
        except (OSError, http.client.HTTPException, ValueError) as error:
            done = now - heard > GIVE_UP
            if not said:
                said = True
                say(run, error)
            time.sleep(1 - POLL)
        if done:
            for name in asked:
                os.unlink(os.path.join(run, name))
                busy = now
        if not alive(starter) and time.monotonic() - busy > IDLE:
            return
        time.sleep(POLL)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    os.closerange(4, 1024)  # what the job left open
    os.nice(19)
    main(sys.argv[1], int(sys.argv[2]))
