"""The webhook over TLS: real questions get patches, and whatever else is sent, pods are admitted."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.capture.kubernetes import objects as k8s_objects
from lostflops.capture.kubernetes import tls
from lostflops.capture.kubernetes.admission import VERSION, review
from lostflops.capture.kubernetes.pod import STATUS, Wish
from lostflops.capture.kubernetes.tls import Server
from lostflops.capture.kubernetes.webhook import LARGEST, answering
from lostflops.cli import main
from pod_runner import free_port

pytest.importorskip("cryptography")
from lostflops.capture.kubernetes.certificate import certificate, expiry

WISH = Wish(["sitecustomize.py", "lostflops_recorder/__init__.py"])
SERVICE = "lostflops.lostflops.svc"


def question(pod: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    """An AdmissionReview as the API server sends it for a pod that a Job makes."""
    made = pod or {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "train-",
            "labels": {"batch.kubernetes.io/job-name": "train", "lostflops.dev/record": "enabled"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u"}],
        },
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "image": "ours",
                    "command": ["torchrun", "train.py"],
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                },
                {"name": "proxy", "image": "proxy", "command": ["proxy"]},
            ],
            "volumes": [{"name": "token", "projected": {"sources": []}}],
        },
    }
    asked = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:job-controller"},
        "object": made,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "request": {**asked, **request}}


def patched(asked: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    jsonpatch = pytest.importorskip("jsonpatch")
    response = answer["response"]
    assert (answer["apiVersion"], answer["kind"]) == (VERSION, "AdmissionReview")
    assert (response["uid"], response["allowed"]) == (asked["request"]["uid"], True)
    if "patch" not in response:
        assert "patchType" not in response
        return asked["request"]["object"]
    assert response["patchType"] == "JSONPatch"
    return jsonpatch.apply_patch(asked["request"]["object"], base64.b64decode(response["patch"]).decode())


class Client:
    """The API server."""

    def __init__(self, folder: Path) -> None:
        made = certificate([SERVICE], 30)
        (folder / "tls.crt").write_text(made.certificate)
        (folder / "tls.key").write_text(made.key)
        self.context = ssl.create_default_context(cadata=made.authority)
        self.server = Server(("127.0.0.1", 0), answering(WISH, "lostflops"), folder)
        self.address = self.server.server_address[:2]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(self.address, timeout=20)
        return self.context.wrap_socket(plain, server_hostname=SERVICE)

    def send(self, body: bytes, path: str = "/mutate?timeout=5s", **headers: str) -> tuple[int, bytes]:
        given = {"Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
        lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items() if value]
        with self.connect() as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.read()

    def ask(self, document: Any) -> dict[str, Any]:
        status, body = self.send(json.dumps(document).encode())
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    made = Client(tmp_path_factory.mktemp("certificate"))
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_pod_is_patched_over_tls(client: Client) -> None:
    asked = question()
    pod = patched(asked, client.ask(asked))
    trainer, proxy = pod["spec"]["containers"]
    assert trainer["command"][:2] == ["/bin/sh", "-c"]
    assert trainer["command"][-2:] == ["torchrun", "train.py"]
    assert [mount["name"] for mount in trainer["volumeMounts"]] == [
        "token",
        "lostflops-boot",
        "lostflops-run",
    ]
    env = {entry["name"]: entry.get("value") for entry in trainer["env"]}
    assert env["LOSTFLOPS_RUN"] == "/lostflops/run/train/$(LOSTFLOPS_POD)/trainer"
    assert proxy == asked["request"]["object"]["spec"]["containers"][1]
    assert pod["metadata"]["annotations"] == {STATUS: "set up to record trainer"}
    assert pod["metadata"]["labels"] == asked["request"]["object"]["metadata"]["labels"]


def test_the_patched_pod_is_valid_and_patching_it_again_changes_nothing(client: Client) -> None:
    asked = question()
    asked["request"]["object"]["spec"]["volumes"] = []
    asked["request"]["object"]["spec"]["containers"][0].pop("volumeMounts")
    pod = patched(asked, client.ask(asked))
    pytest.importorskip("kubernetes_validate").validate(pod, "1.37", strict=True)
    again = question(pod)
    answer = client.ask(again)
    assert "patch" not in answer["response"]
    assert patched(again, answer) == pod


def test_a_dry_run_is_answered_alike(client: Client) -> None:
    assert client.ask(question(dryRun=True)) == client.ask(question())


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"namespace": "kube-system"},
        {"namespace": "lostflops"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
    ],
)
def test_what_is_no_new_pod_of_a_user_is_admitted_unchanged(client: Client, request_: dict[str, Any]) -> None:
    answer = client.ask(question(**request_))
    assert answer["response"] == {"uid": question()["request"]["uid"], "allowed": True}


def test_a_pod_that_opts_out_is_left_alone() -> None:
    asked = question()
    asked["request"]["object"]["metadata"]["labels"]["lostflops.dev/record"] = "disabled"
    assert "patch" not in review(asked, WISH)["response"]


def test_annotations_of_a_pod_say_what_to_record() -> None:
    asked = question()
    annotations = asked["request"]["object"]["metadata"]["annotations"] = {
        "lostflops.dev/steps": "20-24",
        "lostflops.dev/every": "1000",
        "lostflops.dev/ranks": "0,8-9",
    }
    env = {
        e["name"]: e.get("value") for e in patched(asked, review(asked, WISH))["spec"]["containers"][0]["env"]
    }
    expected = {"steps": [[20, 24]], "every": 1000, "ranks": [[0, 0], [8, 9]]}
    assert json.loads(env["LOSTFLOPS_SETTINGS"]) == expected
    annotations["lostflops.dev/what"] = "tea"
    answer = review(asked, WISH)
    (warning,) = answer["response"]["warnings"]
    assert "are ignored: 'tea' is not something that can be recorded." in warning
    env = {e["name"] for e in patched(asked, answer)["spec"]["containers"][0]["env"]}
    assert "LOSTFLOPS_RUN" in env and "LOSTFLOPS_SETTINGS" not in env


def test_a_container_without_a_command_is_said_in_annotation_and_warning(client: Client) -> None:
    asked = question()
    asked["request"]["object"]["spec"]["containers"][0].pop("command")
    answer = client.ask(asked)
    assert ("it sets no command, and lostflops cannot see the image's default") in answer["response"][
        "warnings"
    ][0]
    pod = patched(asked, answer)
    assert ("it sets no command, and lostflops cannot see the image's default") in pod["metadata"][
        "annotations"
    ][STATUS]
    assert "env" not in pod["spec"]["containers"][0]


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": 3},
        {"containers": [3]},
        {"containers": [{"name": "c", "command": "python"}]},
        {"containers": [{"name": "c", "command": ["python", 3]}]},
        {"containers": [{"name": ["c"], "command": ["python"], "env": {}}]},
        {"containers": [{"command": ["python"], "resources": {"limits": 7}}]},
        {"containers": [], "volumes": "v", "os": []},
        [],
        None,
    ],
)
def test_a_pod_that_is_none_is_admitted_unchanged(client: Client, spec: Any) -> None:
    asked = question()
    asked["request"]["object"]["spec"] = spec
    answer = client.ask(asked)
    assert answer["response"]["allowed"] is True
    assert "patch" not in answer["response"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"[]", {}, 400),
        (b"null", {}, 400),
        (json.dumps({**question(), "apiVersion": "admission.k8s.io/v1beta1"}).encode(), {}, 400),
        (json.dumps({**question(), "request": []}).encode(), {}, 400),
        (json.dumps(question(uid=None)).encode(), {}, 400),
        (b"{}", {"Content_Type": "text/yaml"}, 415),
        (b"{}", {"Content_Length": ""}, 411),
        (b"{}", {"Content_Length": "-2"}, 411),
        (b"{}", {"Content_Length": "9" * 40}, 413),
        (b"", {"Content_Length": str(LARGEST + 1)}, 413),
        (b"{}", {"path": "/other"}, 404),
    ],
)
def test_what_is_no_question_is_refused_and_the_server_goes_on(
    client: Client, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert client.send(body, **headers)[0] == status
    assert client.ask(question())["response"]["allowed"] is True


def test_silent_clients_do_not_keep_others_waiting(client: Client) -> None:
    silent = [socket.create_connection(client.address) for _ in range(8)]
    half = client.connect()
    half.sendall(b"POST /mutate HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    began = time.monotonic()
    assert client.ask(question())["response"]["allowed"] is True
    assert time.monotonic() - began < 5
    with socket.create_connection(client.address) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert plain.recv(100) == b"", "answered without TLS"
    for one in (half, *silent):
        one.close()
    assert client.ask(question())["response"]["allowed"] is True


def test_a_fault_of_ours_admits_the_pod_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("on\npurpose")

    monkeypatch.setattr("lostflops.capture.kubernetes.admission.record", fails)
    response = review(question(), WISH)["response"]
    assert response["allowed"] is True
    assert response["warnings"] == [r"lostflops: not recorded: on\npurpose"]
    assert "patch" not in response


WORDS = st.text("ab/-$()'\"~ ", max_size=5)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.sampled_from(["c", "d", "a/b~c"])},
    optional={
        "command": st.lists(st.sampled_from(["python", "/opt/bin/python3.11", "sh", "-c", "-E", "$(X)"])),
        "args": st.lists(WORDS, max_size=2),
        "env": st.none()
        | st.lists(st.fixed_dictionaries({"name": st.sampled_from(["A", "PYTHONPATH"]), "value": WORDS})),
        "volumeMounts": st.none() | st.just([{"name": "v", "mountPath": "/v"}]),
    },
)


@settings(max_examples=150, deadline=None)
@given(st.lists(CONTAINERS, max_size=3), st.booleans())
def test_every_patch_applies_and_makes_what_recording_needs(containers: list[Any], empty: bool) -> None:
    asked = question()
    spec = asked["request"]["object"]["spec"] = {
        "containers": containers,
        **({"volumes": None} if empty else {}),
    }
    answer = review(asked, WISH)
    made = patched(asked, answer)
    again = question(made)
    assert patched(again, review(again, WISH)) == made
    recorded = [one for one in made["spec"]["containers"] if "LOSTFLOPS_RUN" in str(one.get("env"))]
    assert bool(recorded) == ("lostflops-boot" in str(made["spec"].get("volumes")))
    for before, after in zip(spec["containers"], made["spec"]["containers"], strict=True):
        kept = before.get("command") or []
        assert (after.get("command") or [])[-len(kept) or len(after.get("command") or []) :] == kept
        assert after.get("args") == before.get("args")


def test_the_question_is_not_changed_by_answering_it() -> None:
    asked = question()
    before = deepcopy(asked)
    review(asked, WISH)
    assert asked == before


def test_serve_is_the_webhook_with_the_whole_payload(tmp_path: Path) -> None:
    made = certificate([SERVICE], 30)
    (tmp_path / "tls.crt").write_text(made.certificate)
    (tmp_path / "tls.key").write_text(made.key)
    port = free_port()
    command = ["launch", "k8s", "serve", "--certificate", str(tmp_path), "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "lostflops", *command], stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stderr is not None
            assert serving.stderr.readline() == f"answering on 127.0.0.1:{port}\n"
            context = ssl.create_default_context(cadata=made.authority)
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            asked = question()
            connection.request("POST", "/mutate", json.dumps(asked), {"Content-Type": "application/json"})
            pod = patched(asked, json.load(connection.getresponse()))
            connection.close()
        finally:
            serving.kill()
    items = {item["path"] for item in pod["spec"]["volumes"][1]["configMap"]["items"]}
    assert items == set(k8s_objects.payload())


def test_serve_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "k8s", "serve", "--certificate", str(tmp_path), "--port", "0"]) == 2
    assert "the folder holds tls.crt and tls.key" in capsys.readouterr().err


def test_a_renewed_certificate_is_taken_without_a_restart(tmp_path: Path) -> None:
    client = Client(tmp_path)
    try:
        renewed = certificate([SERVICE], 60)
        time.sleep(0.01)
        (tmp_path / "tls.key").write_text(renewed.key)
        (tmp_path / "tls.crt").write_text(renewed.certificate)
        client.context = ssl.create_default_context(cadata=renewed.authority)
        assert client.ask(question())["response"]["allowed"] is True
    finally:
        client.server.shutdown()
        client.server.server_close()
    assert (expiry(renewed.certificate) - expiry(certificate([SERVICE], 30).certificate)).days in (29, 30)


def test_a_pod_of_thousands_of_containers_is_admitted_untouched_at_once() -> None:
    pod = question()["request"]["object"]
    pod["spec"]["containers"] = [{"name": f"c{n}", "command": ["torchrun", "x.py"]} for n in range(30_000)]
    began = time.process_time()
    said = review(question(pod), WISH)["response"]
    assert time.process_time() - began < 1
    assert said["allowed"]
    assert "patch" not in said
    assert "30,000 containers" in said["warnings"][0]


def test_clients_that_dribble_do_not_keep_others_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection is taken by a client that sends a byte now and then; the next one is answered."""
    monkeypatch.setattr(tls, "AT_ONCE", 8)
    monkeypatch.setattr(tls, "GRACE", 0.2)
    slow = [socket.create_connection(client.address, timeout=5) for _ in range(8)]
    time.sleep(0.5)
    for one in slow:
        with suppress(OSError):
            one.send(b"\x16")
    time.sleep(0.5)
    assert client.ask(question())["response"]["allowed"]
    for one in slow:
        one.close()


def test_a_request_has_a_deadline_however_often_something_comes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "PATIENCE", 0.5)
    with socket.create_connection(client.address, timeout=20) as dribbling:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 15:
                dribbling.send(b"\x16")
                time.sleep(0.1)
    assert time.monotonic() - began < 10


def test_512_slow_clients_keep_no_request_from_its_answer(client: Client) -> None:
    """As many as are let in, each with half a handshake: the API server gives a webhook five seconds."""
    slow = [socket.create_connection(client.address, timeout=5) for _ in range(tls.AT_ONCE)]
    try:
        time.sleep(tls.GRACE + 0.2)
        for one in slow:
            with suppress(OSError):
                one.send(b"\x16")
        for _ in range(3):
            began = time.monotonic()
            assert client.ask(question())["response"]["allowed"]
            assert time.monotonic() - began < 5
    finally:
        for one in slow:
            one.close()


def test_a_pod_of_thousands_of_containers_is_answered_over_tls_within_the_deadline(client: Client) -> None:
    pod = question()["request"]["object"]
    pod["spec"]["containers"] = [{"name": f"c{n}", "command": ["torchrun", "x.py"]} for n in range(30_000)]
    began = time.monotonic()
    said = client.ask(question(pod))["response"]
    assert time.monotonic() - began < 5
    assert said["allowed"] and "patch" not in said


def test_a_pod_that_no_cluster_could_keep_is_admitted_untouched_at_once(client: Client) -> None:
    pod = question()["request"]["object"]
    pod["spec"]["containers"][0]["env"] = [{"name": f"E{n}", "value": "v"} for n in range(90_000)]
    began = time.monotonic()
    said = client.ask(question(pod))["response"]
    assert time.monotonic() - began < 5
    assert said["allowed"] and "patch" not in said
    assert "bytes, more than 1,572,864" in said["warnings"][0]
