"""What a pod is given, and nothing beyond it; checked against the schemas of Kubernetes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from lostflops.capture.kubernetes import objects as k8s_objects
from lostflops.capture.kubernetes.certificate import Certificate
from lostflops.capture.kubernetes.pod import STATUS, Wish, quantity, record

VERSIONS = ["1.29", "1.37"]
FILES = ["sitecustomize.py", "lostflops_recorder/__init__.py"]


def pod(*command: str, **container: Any) -> dict[str, Any]:
    words = {"command": list(command)} if command else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", **words, **container}]},
    }


def wrapped(command: list[str], env: dict[str, str], folder: Path) -> str:
    """What the wrapped command prints, with the payload in `folder`."""
    (folder / "sitecustomize.py").write_text("")
    given = [word.replace("/lostflops/boot", str(folder)) for word in command]
    (folder / "os.py").write_text("raise SystemExit('an os.py of the job was imported')")
    done = subprocess.run(
        given, cwd=folder, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("first", [sys.executable, "/usr/bin/env"])
def test_the_images_own_pythonpath_stays_behind_ours(first: str, tmp_path: Path) -> None:
    words = [first] if first == sys.executable else [first, sys.executable]
    one = pod(*words, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])", "a b", "$HOME")
    said = record(one, "job", Wish(FILES))
    assert said.recorded == ["c"]
    (container,) = one["spec"]["containers"]
    assert "PYTHONPATH" not in {entry["name"] for entry in container["env"]}
    printed = "['a b', '$HOME']\n"
    assert wrapped(container["command"], {"PYTHONPATH": "/image"}, tmp_path) == f"{tmp_path}:/image {printed}"
    assert wrapped(container["command"], {}, tmp_path) == f"{tmp_path} {printed}"


@pytest.mark.parametrize("first", [sys.executable, "/usr/bin/env"])
def test_without_the_payload_the_job_runs_as_it_would(first: str) -> None:
    words = [first] if first == sys.executable else [first, sys.executable]
    one = pod(*words, "-c", "import os, sys; print(os.environ.get('PYTHONPATH')); sys.exit(7)")
    record(one, "job", Wish(FILES))
    command = one["spec"]["containers"][0]["command"]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "None\n", "")


def test_a_pythonpath_of_the_pod_is_prepended_to_and_the_command_stays() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "PYTHONPATH", "value": "/theirs"}]
    one = pod("torchrun", "train.py", env=env)
    record(one, "job", Wish(FILES))
    (container,) = one["spec"]["containers"]
    assert container["command"] == ["torchrun", "train.py"]
    assert container["env"][1] == {"name": "PYTHONPATH", "value": "/lostflops/boot:/theirs"}
    assert env[1]["value"] == "/theirs", "a list that others may share was changed"


@pytest.mark.parametrize(
    ("command", "more", "reason"),
    [
        ([], {}, "it sets no command, and lostflops cannot see the image's default command"),
        (["python", "-I", "train.py"], {}, "`python -I` makes Python ignore PYTHONPATH"),
        (["python", "x.py"], {"env": [{"name": "LOSTFLOPS_OFF", "value": "1"}]}, "sets LOSTFLOPS_RUN or"),
        (["lostflops", "record", "--", "python", "x.py"], {}, "its command already runs lostflops"),
        (["python", "x.py"], {"volumeMounts": [{"name": "v", "mountPath": "/lostflops"}]}, "mounted at"),
    ],
)
def test_a_container_that_cannot_be_recorded_says_why(
    command: list[str], more: dict[str, Any], reason: str
) -> None:
    one = pod(*command, **more)
    before = deepcopy(one)
    said = record(one, "job", Wish(FILES))
    assert not said.recorded
    assert reason in said.notes[0]
    status = one["metadata"].pop("annotations")[STATUS]
    assert status == said.notes[0]
    assert one == before


def test_a_container_that_is_no_training_is_not_touched() -> None:
    one = pod("nginx", "-g", "daemon off;")
    before = deepcopy(one)
    assert "does not match" in record(one, "job", Wish(FILES)).notes[0]
    assert one == before


def test_force_sets_the_variable_where_there_is_no_command() -> None:
    one = pod(args=["train.py"])
    assert record(one, "job", Wish(FILES, force=True)).recorded == ["c"]
    assert {"name": "PYTHONPATH", "value": "/lostflops/boot"} in one["spec"]["containers"][0]["env"]


def test_nothing_but_what_is_documented_is_added() -> None:
    one = pod("python", "train.py", resources={"limits": {"cpu": "2"}})
    before = deepcopy(one)
    record(one, "job", Wish(FILES))
    container = one["spec"]["containers"][0]
    assert [entry["name"] for entry in container.pop("env")] == [
        "LOSTFLOPS_POD",
        "LOSTFLOPS_RUN",
        "LOSTFLOPS_LIMIT",
        "LOSTFLOPS_COLLECTOR",
        "LOSTFLOPS_COLLECTOR_CA",
        "LOSTFLOPS_COLLECTOR_TOKEN",
    ]
    assert [m["mountPath"] for m in container.pop("volumeMounts")] == ["/lostflops/boot", "/lostflops/run"]
    assert container.pop("command")[-2:] == ["python", "train.py"]
    assert [volume["name"] for volume in one["spec"].pop("volumes")] == ["lostflops-boot", "lostflops-run"]
    assert one["metadata"].pop("annotations") == {STATUS: "set up to record c"}
    before["spec"]["containers"][0].pop("command")
    assert one == before


def test_a_pod_is_patched_once() -> None:
    one = pod("python", "train.py")
    record(one, "job", Wish(FILES))
    again = deepcopy(one)
    assert record(again, "job", Wish(FILES, size=1 << 30)).notes == ["already patched: left as it is"]
    assert again == one


def test_the_volume_leaves_room_below_what_the_pod_may_write() -> None:
    limits = {"limits": {"ephemeral-storage": "2Gi"}}
    one = pod("python", "train.py", resources=limits)
    record(one, "job", Wish(FILES))
    results = one["spec"]["volumes"][1]
    assert results["emptyDir"] == {"sizeLimit": "512Mi"}
    limit = next(e for e in one["spec"]["containers"][0]["env"] if e["name"] == "LOSTFLOPS_LIMIT")
    assert limit["value"] == str(384 << 20)


def test_a_claim_takes_the_place_of_volume_and_collector() -> None:
    one = pod("python", "train.py")
    record(one, "job", Wish(FILES, claim="results"))
    assert one["spec"]["volumes"][1]["persistentVolumeClaim"] == {"claimName": "results"}
    names = {entry["name"] for entry in one["spec"]["containers"][0]["env"]}
    assert names == {"LOSTFLOPS_POD", "LOSTFLOPS_RUN"}


def test_sizes_are_read_as_kubernetes_writes_them() -> None:
    assert [quantity(text) for text in ("4Gi", "500M", "1.5k", "1e9", "7")] == [
        4 << 30,
        500 * 10**6,
        1500,
        10**9,
        7,
    ]
    assert [quantity(text) for text in ("", "x", "4 GiB", "-1", "1" * 99)] == [None] * 5


@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_are_valid(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    made = Certificate("a", "b", "c")
    changed = pod("python", "train.py")
    record(changed, "job", Wish(sorted(k8s_objects.payload()), settings={"steps": [[3, 5]]}))
    objects = [
        changed,
        *k8s_objects.collector("team", "python:3.12-slim", 20 << 30, 30),
        *k8s_objects.webhook("lostflops", "python:3.12-slim", made),
        *k8s_objects.webhook_of_image("lostflops", "lostflops", made),
    ]
    for one in objects:
        validate(one, version, strict=True)
    wrong = deepcopy(changed)
    wrong["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(Exception, match="volumeMount"):
        validate(wrong, version, strict=True)


def test_added_containers_are_restricted_and_guaranteed() -> None:
    for one in k8s_objects.webhook("lostflops", "i", Certificate("a", "b", "c")):
        if one["kind"] == "Deployment":
            template = one["spec"]["template"]["spec"]
            (container,) = template["containers"]
            assert container["resources"]["limits"] == container["resources"]["requests"]
            assert container["securityContext"]["runAsNonRoot"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert template["automountServiceAccountToken"] is False


def test_the_payload_fits_a_config_map_and_its_keys_are_allowed() -> None:
    one = k8s_objects.payload_map("team")
    # `kubectl apply` keeps a copy in an annotation, which may have 256 KiB.
    assert len(json.dumps(one)) < 256_000
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in one["data"])
    assert len(one["data"]) == len(k8s_objects.payload())
