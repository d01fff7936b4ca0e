"""Patched pods, the webhook and the collector run here as the manifests say, up to the page of `why`."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.capture.kubernetes import objects as k8s_objects
from lostflops.capture.record import new_run
from lostflops.capture.record.injected.lostflops_recorder import copier
from lostflops.cli import main
from pod_runner import Cluster
from recorded import QUICK_TORCH, TRAIN

yaml = pytest.importorskip("yaml")
pytest.importorskip("ruamel.yaml")
pytest.importorskip("cryptography")

KUBECTL = """#!/bin/sh
case "$*" in
  *"port-forward deployment/lostflops-collector :8080")
    echo "Forwarding from 127.0.0.1:$PORT -> 8080"; exec sleep 60;;
  "get mutatingwebhookconfiguration"*) cat "$STATE/registration";;
  "get deployment lostflops "*) echo '{"spec": {"replicas": 2}, "status": {"readyReplicas": 1}}';;
  "get secret"*) cat "$STATE/secret";;
  "get namespaces -l lostflops.dev/record=enabled"*) echo '{"items": [{"metadata": {"name": "team"}}]}';;
  "get configmap lostflops-program"*) cat "$STATE/program";;
  "get configmap lostflops-boot"*) cat "$STATE/payload";;
  "get deployment"*) echo '{}';;
  *) echo "what is $*" >&2; exit 1;;
esac
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["launch", "k8s", *words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def team(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cluster]:
    """A namespace with what `install` prints, and its collector running."""
    objects = list(yaml.safe_load_all(printed(capsys, "install", "-n", "team", "--days", "5")))
    cluster = Cluster(tmp_path / "team", objects)
    cluster.folder.mkdir()
    cluster.ports = cluster.serve("lostflops-collector")
    yield cluster
    cluster.stop()
    cluster.remove()


@pytest.fixture
def kubectl(team: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PORT", str(team.ports[8080]))
    monkeypatch.setenv("STATE", str(tmp_path))
    return folder


def collector(team: Cluster) -> copier.Collector:
    held = team.objects["Secret", "lostflops-collector"]["stringData"]
    url = held["url"].replace(*next(iter(team.services.items())))
    return copier.Collector(url, held["ca.crt"], held["token"])


def test_a_pod_that_the_webhook_patched_is_recorded_and_killed_and_explained(
    team: Cluster, kubectl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    jsonpatch = pytest.importorskip("jsonpatch")
    webhook = Cluster(tmp_path / "webhook", list(yaml.safe_load_all(printed(capsys, "manifests"))))
    webhook.folder.mkdir()
    try:
        port = webhook.serve("lostflops")[8443]
        registration = webhook.objects["MutatingWebhookConfiguration", "lostflops"]
        for entry in registration["webhooks"]:
            assert (entry["failurePolicy"], entry["sideEffects"]) == ("Ignore", "None")
        path = registration["webhooks"][0]["clientConfig"]["service"]["path"]
        bundle = registration["webhooks"][0]["clientConfig"]["caBundle"]
        container = {"name": "trainer", "image": "i", "command": ["python", "train.py"]}
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "labels": {"job-name": "nightly"},
                "annotations": {"lostflops.dev/steps": "3-5"},
            },
            "spec": {"containers": [container]},
        }
        request = {"uid": "u", "kind": {"kind": "Pod"}, "namespace": "team", "operation": "CREATE"}
        asked = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {**request, "object": pod},
        }
        context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        connection.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
        response = json.load(connection.getresponse())["response"]
        connection.close()
    finally:
        webhook.stop()
        webhook.remove()
    patched = jsonpatch.apply_patch(pod, base64.b64decode(response["patch"]).decode())

    # Killed without a warning: what was recorded has left the pod by then.
    script = "print(os.environ['PYTHONPATH'], flush=True)\ntrain(9)\ntime.sleep(2)\nos.kill(os.getpid(), 9)\n"
    (team.folder / "train.py").write_text(TRAIN + script)
    image = f"/of/the/image:{QUICK_TORCH}"
    team.start(patched, "nightly-x7", {"PYTHONPATH": image})
    status, out, said = team.finish()
    assert (status, said) == (-9, "")
    assert out == f"{team.volume('nightly-x7', 'lostflops-boot')}:{image}\n"

    run = tmp_path / "fetched"
    assert main(["launch", "k8s", "fetch", "-n", "team", "--output", str(run)]) == 0
    said = capsys.readouterr().err
    assert "recorded steps 3-5 on 1 rank" in said
    assert f"next: lostflops why {run}" in said
    (log,) = run.glob("nightly-x7/trainer/node-*/steps-00000-a0.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    # The log is sent with each trace and every ten seconds.
    assert [line["step"] for line in lines if "step" in line][:6] == list(range(6))
    assert main(["why", str(run)]) == 0
    assert "1 rank · 3 steps · CPU only" in capsys.readouterr().out

    (tmp_path / "registration").write_text(json.dumps(registration))
    secret = webhook.objects["Secret", "lostflops-certificate"]["stringData"]["tls.crt"]
    data = {"tls.crt": base64.b64encode(secret.encode()).decode()}
    (tmp_path / "secret").write_text(json.dumps({"data": data}))
    (tmp_path / "program").write_text(json.dumps(webhook.objects["ConfigMap", "lostflops-program"]))
    payload = team.objects["ConfigMap", "lostflops-boot"]
    (tmp_path / "payload").write_text(json.dumps(payload))
    report = printed(capsys, "status")
    assert "webhook: 1 of 2 replicas ready\nauthority valid until 20" in report
    assert report.endswith("namespaces recorded: team\n")
    assert "another lostflops" not in report
    (tmp_path / "program").write_text('{"data": {"payload.json": "[]"}}')
    payload["data"]["sitecustomize.py"] = ""
    (tmp_path / "payload").write_text(json.dumps(payload))
    report = printed(capsys, "status")
    assert report.count("another version of lostflops") == 2
    assert "apply `lostflops launch k8s install -n team --update`\n" in report
    (tmp_path / "payload").write_text("")
    (tmp_path / "registration").write_text("")
    assert "  team: no configmap 'lostflops-boot'; apply `lostflops launch k8s install -n team`\n" in printed(
        capsys, "status"
    )


def test_a_job_of_torchrun_is_patched_recorded_and_fetched(
    team: Cluster, kubectl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "job.yaml"
    file.write_text(
        """
apiVersion: batch/v1
kind: Job
metadata: {name: two, namespace: team}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: trainer
        image: i
        command: [torchrun, --standalone, --nproc-per-node, "2"]
        args: [train.py]
"""
    )
    payload, job = yaml.safe_load_all(printed(capsys, "patch", str(file), "--steps", "2-4"))
    assert payload["data"] == team.objects["ConfigMap", "lostflops-boot"]["data"]
    script = """
torch.distributed.init_process_group("gloo")
losses = [train(1) for _ in range(6)]
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    (team.folder / "train.py").write_text(TRAIN + script)
    team.start(job["spec"]["template"], "two-0", {"PYTHONPATH": QUICK_TORCH})
    status, _, said = team.finish()
    assert status == 0, said
    run = tmp_path / "fetched"
    assert main(["launch", "k8s", "fetch", "two", "-n", "team", "--output", str(run)]) == 0
    assert "recorded steps 2-4 on 2 ranks" in capsys.readouterr().err
    steps = lostflops.open(run).table("steps")
    assert steps is not None
    assert sorted(set(steps.collect()["rank"])) == [0, 1]


@pytest.mark.parametrize("module", [k8s_objects.WEBHOOK_PROGRAM, k8s_objects.COLLECTOR_PROGRAM])
def test_the_programs_need_a_python_and_nothing_else(module: str, tmp_path: Path) -> None:
    files = k8s_objects.program(module)
    assert len(json.dumps(files)) < 200_000
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    command = [sys.executable, "-S", "-m", module, "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_collector_takes_from_pods_what_nobody_can_change(team: Cluster) -> None:
    to = collector(team)
    path = "/job/pod/c/steps.jsonl"
    assert to.ask("HEAD", path) == (404, 0)
    assert to.ask("PUT", path, b"abc", **{"Lostflops-Offset": "0"}) == (200, 3)
    assert to.ask("PUT", path, b"xyz", **{"Lostflops-Offset": "0"}) == (409, 3)
    assert to.ask("PUT", path, b"defgh", **{"Lostflops-Offset": "3"}) == (200, 8)
    assert to.ask("PUT", "/job/pod/c/trace.gz", b"trace") == (200, 5)
    assert to.ask("PUT", "/job/pod/c/trace.gz", b"other")[0] == 409
    kept = team.volume("lostflops-collector-0", "results") / "kept" / "job" / "pod" / "c"
    assert (kept / "steps.jsonl").read_bytes() == b"abcdefgh"
    assert (kept / "trace.gz").read_bytes() == b"trace"


def test_the_collector_takes_no_path_that_leads_elsewhere(team: Cluster) -> None:
    to = collector(team)
    for path in (
        "/../x",
        "/a/../../x",
        "/a//x",
        "/a/.hidden",
        "/a/%2e%2e/x",
        "/a/b%00",
        "/" + "a/" * 20 + "x",
    ):
        connection = http.client.HTTPSConnection(to._where.hostname, to._where.port, context=to._context)
        connection.request("PUT", path, b"x", to._headers)
        assert connection.getresponse().status == 400, path
        connection.close()


def test_an_update_leaves_token_and_certificate_alone(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [one["kind"] for one in yaml.safe_load_all(printed(capsys, "install", "-n", "x", "--update"))]
    assert sorted(kinds) == ["ConfigMap", "ConfigMap", "Deployment", "Service"]


def test_the_collector_asks_for_its_token_and_answers_readers_on_loopback_only(team: Cluster) -> None:
    to = collector(team)
    assert to.ask("GET", "/")[0] == 404
    to._headers = {"Authorization": "Bearer guessed"}
    assert to.ask("PUT", "/a/b/c/x.log", b"x")[0] == 401
    assert to.ask("HEAD", "/a/b/c/x.log")[0] == 401
    renewed = team.volume("lostflops-collector-0", "certificate") / "token"
    renewed.write_text("guessed")
    assert to.ask("HEAD", "/a/b/c/x.log")[0] == 404
    command = team.objects["Deployment", "lostflops-collector"]["spec"]["template"]["spec"]["containers"][0]
    assert "--read-port" in command["command"]
    assert k8s_objects.READ_PORT not in {port["containerPort"] for port in command["ports"]}


@pytest.mark.parametrize("authority", ["", "no certificate"])
def test_a_collector_that_does_not_answer_harms_no_job(tmp_path: Path, authority: str) -> None:
    run = tmp_path / "job" / "pod" / "c"
    script = (
        "from lostflops_recorder import copying; copying.WAIT = 2.0; copying.begin(None)\n"
        "import os; open(os.environ['LOSTFLOPS_RUN'] + '/steps.jsonl', 'w').write('x')\n"
        "raise SystemExit(7)"
    )
    env = {
        "PYTHONPATH": str(new_run.PAYLOAD),
        "LOSTFLOPS_RUN": str(run),
        "LOSTFLOPS_COLLECTOR": "https://127.0.0.1:1",
        "LOSTFLOPS_COLLECTOR_CA": authority,
    }
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    assert time.monotonic() - began < 8
    while not (run / "lostflops.log").exists() and time.monotonic() - began < 20:
        time.sleep(0.05)
    assert "copying results: " in (run / "lostflops.log").read_text()


def test_fetch_says_what_there_is(
    team: Cluster, kubectl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(*words: str) -> str:
        assert main(["launch", "k8s", "fetch", "--output", str(tmp_path / "run"), *words]) == 2
        return capsys.readouterr().err

    assert fetch().startswith("The collector holds no results yet.\nHint: ")
    to = collector(team)
    for job in ("one", "two"):
        to.ask("PUT", f"/{job}/pod/c/lostflops.log", b"x" * 10, **{"Lostflops-Offset": "0"})
    assert fetch() == "The collector holds several jobs; name one.\nHint: it has one, two.\n"
    assert fetch("three") == "The collector has no job 'three'.\nHint: it has one, two.\n"
    assert printed(capsys, "fetch", "--list") == "one  1 files, 0.0 MB\ntwo  1 files, 0.0 MB\n"
    assert main(["launch", "k8s", "fetch", "one", "--output", str(tmp_path / "run")]) == 0
    assert "no step has been logged yet" in capsys.readouterr().err
    assert "already exists" in fetch("one")


def test_a_cluster_that_cannot_be_asked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "k8s", "fetch"]) == 2
    assert capsys.readouterr().err.startswith("There is no `kubectl` on the PATH.\nHint: ")
    fake = tmp_path / "kubectl"
    fake.write_text("#!/bin/sh\necho 'error: deployment not found' >&2\nexit 1\n")
    fake.chmod(0o755)
    for action in ("fetch", "status"):
        assert main(["launch", "k8s", action]) == 2
        assert "error: deployment not found" in capsys.readouterr().err


def test_a_full_collector_says_so_and_the_rest_is_kept(tmp_path: Path) -> None:
    from lostflops.capture.kubernetes.collector import ResultsFolder

    (tmp_path / "a").write_bytes(b"12345")
    store = ResultsFolder(tmp_path, 12)
    assert (store.take(7), store.take(1)) == (True, False)
    store.give_back(2)
    assert store.take(2)


def test_a_recording_inside_a_pod_is_left_to_record(tmp_path: Path) -> None:
    for name, in_pod in (("mounted", True), ("recorded", False)):
        folder = tmp_path / name
        shutil.copytree(new_run.PAYLOAD, folder / "boot")
        if not in_pod:
            (folder / "recording.jsonl").write_text("")
        script = "from lostflops_recorder import log; print(log.RUN, log.IN_POD)"
        env = {"PYTHONPATH": str(folder / "boot"), "LOSTFLOPS_RUN": "/lostflops/run/j/p/c"}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
        assert done.stdout == f"{'/lostflops/run/j/p/c' if in_pod else folder} {in_pod}\n", done.stderr


def test_room_ends_where_the_pods_volume_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lostflops.capture.record.injected.lostflops_recorder import free_space, log

    (tmp_path / "window").write_bytes(b"x" * 300)
    monkeypatch.setattr(log, "RUN", str(tmp_path))
    assert free_space.room(str(tmp_path), 50) > 1000
    monkeypatch.setenv("LOSTFLOPS_LIMIT", "1000")
    assert free_space.room(str(tmp_path), 50) == 1000 - 300 + 50


def test_a_copier_goes_on_where_another_stopped(team: Cluster, tmp_path: Path) -> None:
    run = tmp_path / "run" / "job" / "pod" / "c"
    run.mkdir(parents=True)
    steps, trace = run / "steps.jsonl", run / "window.pt.trace.json"
    steps.write_text("1\n")
    (run / ".hidden").write_text("")
    assert copier.Copier(str(run), collector(team)).copy(False)
    steps.write_text("1\n2\n")
    trace.write_text("{}")
    (run / "other.bin").write_text("still growing")
    second = copier.Copier(str(run), collector(team))
    assert second.copy(False)
    assert not second.copy(False)
    kept = team.volume("lostflops-collector-0", "results") / "kept" / "job" / "pod" / "c"
    assert (kept / "steps.jsonl").read_text() == "1\n2\n"
    assert sorted(file.name for file in kept.iterdir()) == ["steps.jsonl", "window.pt.trace.json.gz"]
    assert second.copy(True), "at the end all goes"
    assert (kept / "other.bin").exists()
    assert not list(run.glob(".window*"))


@pytest.mark.parametrize("changed", [-3600, 3600])
def test_a_file_settles_by_what_is_seen_of_it_and_not_by_the_time_of_day(
    changed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was set an hour forward since the file's last change, or back."""
    file, now, at = tmp_path / "memory.bin", [100.0], int(time.time()) + changed
    monkeypatch.setattr(copier.time, "monotonic", lambda: now[0])
    sender = copier.Copier("/lostflops/run/j/p/c", copier.Collector("http://x", "", ""))

    def settled(seconds: float, text: str) -> bool:
        now[0] += seconds
        file.write_text(text)
        os.utime(file, (at, at))
        return sender._settled(str(file))  # pyright: ignore[reportPrivateUsage]

    assert not settled(0, "one")
    assert not settled(2, "one")
    assert not settled(1, "one, two")
    assert not settled(2, "one, two")
    assert settled(0.5, "one, two")


def test_time_of_a_copy_is_not_that_of_the_job() -> None:
    began = time.monotonic()
    assert not copier.alive(2**22 + 7)
    assert copier.alive(os.getpid())
    assert time.monotonic() - began < 1


def test_a_pod_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    """A job that hangs must not hang the tests, though its ranks have sessions of their own."""
    cluster = Cluster(tmp_path, [])
    rank = "import time; print('begun', flush=True); time.sleep(600)"
    starts = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}], start_new_session=True)"
    )
    cluster.start(
        {"spec": {"containers": [{"image": "python:3", "command": ["python3", "-c", starts]}]}}, "one-0", {}
    )
    out = cluster.running[0].stdout
    assert out is not None and out.readline() == "begun\n"
    cluster.stop()
    assert cluster.running[0].returncode == -signal.SIGKILL
