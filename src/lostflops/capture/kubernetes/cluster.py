"""What is asked of a cluster through the user's kubectl: a collector's results, the webhook's state."""

from __future__ import annotations

import base64
import json
import re
import select
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import quote

from lostflops import run_folder
from lostflops.capture.kubernetes.admission import LABEL
from lostflops.capture.kubernetes.certificate import expiry
from lostflops.capture.kubernetes.collector import DEPTH, PART
from lostflops.capture.kubernetes.objects import READ_PORT, WEBHOOK, payload, payload_map
from lostflops.capture.kubernetes.pod import COLLECTOR, PAYLOAD
from lostflops.capture.record import outcome
from lostflops.errors import BadOption, CannotWrite, ClusterSilent, OutputExists, as_argument, shown

PATIENCE = 30.0
AT_ONCE = 1 << 20


@dataclass(frozen=True)
class KeptFile:
    """A file that the collector has."""

    path: str
    size: int

    @property
    def job(self) -> str:
        return self.path.partition("/")[0]


def kubectl() -> str:
    found = shutil.which("kubectl")
    if found is None:
        raise ClusterSilent(
            "There is no `kubectl` on the PATH", "install it, or run this on a machine that has it."
        )
    return found


@contextmanager
def forwarded(namespace: str | None) -> Generator[str]:
    """The collector's address on this machine, for as long as this is open."""
    where = ["-n", namespace] if namespace else []
    command = [kubectl(), *where, "port-forward", f"deployment/{COLLECTOR}", f":{READ_PORT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as forwarding:
        try:
            port = _port(forwarding)
            # It says a line for each connection, and would stop once nobody reads them.
            for stream in (forwarding.stdout, forwarding.stderr):
                threading.Thread(target=_drain, args=(stream,), daemon=True).start()
            yield f"http://127.0.0.1:{port}"
        finally:
            forwarding.terminate()


def _drain(stream: IO[bytes]) -> None:
    with suppress(OSError, ValueError):
        while stream.read(AT_ONCE):
            pass


def _port(forwarding: subprocess.Popen[bytes]) -> int:
    assert forwarding.stdout is not None and forwarding.stderr is not None
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ready, _, _ = select.select([forwarding.stdout], [], [], 0.2)
        line = forwarding.stdout.readline().decode(errors="replace") if ready else ""
        found = re.search(r"127\.0\.0\.1:(\d+) ->", line)
        if found:
            return int(found[1])
        if ready and not line:  # it has ended
            why = forwarding.stderr.read().decode(errors="replace").strip().splitlines()
            raise ClusterSilent(
                f"kubectl cannot reach the collector: {shown(why[-1] if why else 'it gave no reason')}",
                f"`kubectl get deployment {COLLECTOR}` in the job's namespace shows whether it exists; "
                "`lostflops launch k8s install` prints what creates it.",
            )
    raise ClusterSilent("kubectl did not answer", "`kubectl get pods` shows whether the cluster answers.")


def listing(address: str) -> list[KeptFile]:
    """What the collector has."""
    with _opened(address, "") as answer:
        try:
            given = json.load(answer)
            found = [KeptFile(str(one["path"]), int(one["size"])) for one in given]
        except (ValueError, TypeError, KeyError) as error:
            raise ClusterSilent(
                "Something answers on the collector's port that is not a lostflops collector"
            ) from error
    for one in found:
        parts = one.path.split("/")
        if not 2 <= len(parts) <= DEPTH or not all(PART.fullmatch(part) for part in parts):
            raise ClusterSilent(
                f"The collector lists a file '{shown(one.path)}' that cannot belong to a recording"
            )
    return found


def choose(kept: Sequence[KeptFile], job: str | None) -> str:
    """The job whose results are meant."""
    jobs = sorted({one.job for one in kept})
    if not jobs:
        raise BadOption(
            "The collector holds no results yet.",
            "a job sends results while it runs, once it has imported PyTorch; "
            "`kubectl describe pod` shows in `lostflops.dev/status` whether a pod is recorded.",
        )
    if job is None and len(jobs) == 1:
        return jobs[0]
    if job not in jobs:
        what = (
            "The collector holds several jobs; name one."
            if job is None
            else f"The collector has no job '{shown(job)}'."
        )
        raise BadOption(what, f"it has {', '.join(jobs[:20])}{', …' if len(jobs) > 20 else ''}.")
    return job


def fetch(address: str, kept: Sequence[KeptFile], run: Path) -> None:
    """Write the files of one job below `run`: a folder for each pod, and in it one for each container."""
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise OutputExists(run)
    try:
        for one in kept:
            place = run / one.path.partition("/")[2]
            place.parent.mkdir(parents=True, exist_ok=True)
            beside = place.with_name(f".{place.name}.tmp")
            with _opened(address, one.path) as answer, beside.open("wb") as file:
                shutil.copyfileobj(answer, file, AT_ONCE)
            beside.replace(place)
    except OSError as error:
        raise CannotWrite(run, error) from error


@contextmanager
def _opened(address: str, path: str) -> Generator[Any]:
    # No proxy of the environment: this is this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address}/{quote(path)}", timeout=PATIENCE) as answer:
            yield answer
    except URLError as error:
        raise ClusterSilent(f"The collector does not answer: {shown(str(error.reason))}") from error


def summary(run: Path, kept: Sequence[KeptFile]) -> list[str]:
    """What was fetched, what is recorded in it and what not, and what to do next."""
    pods = {one.path.split("/")[1] for one in kept}
    size = sum(one.size for one in kept)
    logs = [outcome.read_log(path) for path in sorted(run.rglob(run_folder.STEP_LOGS))]
    files = f"{len(kept)} file{'s' * (len(kept) != 1)} of {len(pods)} pod{'s' * (len(pods) != 1)}"
    lines = [f"fetched {files} -> {shown(run)}  ({outcome.amount(size)})"]
    said = [(log, window) for log in logs for window in log.windows if window.get("file")]
    whole = [(log, window) for log, window in said if (log.path.parent / f"{window['file']}.gz").exists()]
    world = max((log.who.get("world") or 1 for log in logs), default=1)
    if whole:
        first = min(window["first"] for _, window in whole)
        last = max(window["last"] for _, window in whole)
        ranks = len({log.rank for log, _ in whole})
        lines.append(f"recorded steps {first}-{last} on {ranks} rank{'s' * (ranks != 1)}")
        partly = " --allow-missing-ranks" if 1 < ranks < world else ""
        lines.append(f"next: lostflops why {as_argument(run)}{partly}")
    elif logs:
        made = max((log.steps[-1]["step"] + 1 for log in logs if log.steps), default=0)
        lines.append(f"no step was recorded in full; the step log has {made} steps")
    else:
        lines.append("no step has been logged yet")
    lost = [
        f"rank {log.rank} is missing one window: {w.get('reason')}"
        for log in logs
        for w in log.windows
        if not w.get("file")
    ]
    if len(said) > len(whole):
        late = len(said) - len(whole)
        lost.append(
            f"{late} trace{'s' * (late != 1)} named in the step log did not arrive: fetch again "
            "while the pods run"
        )
    return [*lines, *lost]


def status(namespace: str) -> list[str]:
    """The state of the webhook and of the namespaces that it records, a line each. Raises ClusterSilent."""
    registered: Any = _get("mutatingwebhookconfiguration", WEBHOOK)
    if registered is None:
        lines = ["webhook: not installed; `lostflops launch k8s manifests` prints its manifests"]
    else:
        lines = ["webhook: registered"]
        deployment: Any = _get("deployment", WEBHOOK, "-n", namespace)
        if deployment is None:
            lines.append(f"webhook: no deployment '{WEBHOOK}' in namespace {namespace}: no pod is recorded")
        else:
            ready = deployment.get("status", {}).get("readyReplicas") or 0
            lines.append(f"webhook: {ready} of {deployment['spec'].get('replicas', 1)} replicas ready")
        program: Any = _get("configmap", f"{WEBHOOK}-program", "-n", namespace)
        # The webhook of the chart has no such ConfigMap.
        if program is not None and _text(program, "data", "payload.json") != json.dumps(sorted(payload())):
            lines.append(
                "webhook: installed by another version of lostflops; apply `lostflops launch k8s "
                "manifests` again"
            )
        secret: Any = _get("secret", f"{WEBHOOK}-certificate", "-n", namespace)
        lines.append(f"authority {_lasts(_text(registered, 'webhooks', 0, 'clientConfig', 'caBundle'))}")
        lines.append(f"certificate {_lasts(_text(secret, 'data', 'tls.crt'))}")
    labelled = _get("namespaces", "-l", f"{LABEL}=enabled")
    names = sorted(one["metadata"]["name"] for one in (labelled or {}).get("items", []))
    lines.append(f"namespaces recorded: {', '.join(names) or 'none; only pods with the label'}")
    for name in names:
        remedy = f"apply `lostflops launch k8s install -n {name}`"
        there: Any = _get("configmap", PAYLOAD, "-n", name)
        if there is None:
            lines.append(f"  {name}: no configmap '{PAYLOAD}'; {remedy}")
        elif there.get("data") != payload_map(name)["data"]:
            lines.append(
                f"  {name}: its configmap '{PAYLOAD}' comes from another version of lostflops; "
                f"{remedy[:-1]} --update`"
            )
        if _get("deployment", COLLECTOR, "-n", name) is None:
            lines.append(f"  {name}: no deployment '{COLLECTOR}'; {remedy}")
    return lines


def _text(holder: Any, *path: str | int) -> str:
    """What lies at a path in an answer; nothing where there is no such place."""
    for step in path:
        try:
            holder = holder[step]
        except (LookupError, TypeError):
            return ""
    return str(holder)


def _lasts(encoded: str) -> str:
    try:
        ends = expiry(base64.b64decode(encoded).decode())
    except ValueError:
        return (
            "is missing or not a certificate: the API server cannot call the webhook, and pods "
            "start unrecorded"
        )
    days = (ends - datetime.now(UTC)).days
    if days < 0:
        return (
            f"EXPIRED on {ends:%Y-%m-%d}: the API server cannot call the webhook, and pods start unrecorded"
        )
    return f"valid until {ends:%Y-%m-%d} ({days} days)"


def _get(*words: str) -> Mapping[str, Any] | None:
    command = [kubectl(), "get", *words, "--ignore-not-found", "-o", "json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise ClusterSilent(
            "kubectl did not answer", "`kubectl get pods` shows whether the cluster answers."
        ) from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise ClusterSilent(f"kubectl failed: {shown(why[-1] if why else 'it gave no reason')}")
    try:
        return json.loads(done.stdout) if done.stdout.strip() else None
    except ValueError as error:
        raise ClusterSilent("kubectl printed something that is not JSON") from error
