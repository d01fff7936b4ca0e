"""`lostflops launch k8s patch`: manifests go in, and come out recorded, with all else as it was."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lostflops.capture.kubernetes import objects as k8s_objects
from lostflops.capture.kubernetes import pod as k8s_pod
from lostflops.cli import main

pytest.importorskip("ruamel.yaml")

JOB = """\
# nightly
apiVersion: batch/v1
kind: Job
metadata:
  name: nightly
  namespace: team   # ours
spec:
  template:
    spec:
      containers:
      - name: trainer
        image: "ours:1"  # pinned
        command: ["torchrun", "--nproc-per-node", "8", "train.py"]
        resources: {limits: {cpu: "2"}}
      restartPolicy: Never
"""
PYTORCH_JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: two, namespace: team}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &template
        spec:
          containers:
            - name: pytorch
              image: ours
              command: [python, train.py]
    Worker:
      replicas: 3
      template: *template
"""
TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    command: [torchrun, train.py]
    numNodes: 2
"""
LIST = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: p}
  spec:
    containers:
    - {name: c, image: i, command: [python, t.py]}
- {apiVersion: v1, kind: Service, metadata: {name: s}}
"""


def valid_pod(template: dict[str, Any]) -> None:
    """Schemas of custom kinds are not at hand; what is in them is a pod's."""
    validate = pytest.importorskip("kubernetes_validate").validate
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {}, **template}, "1.37", strict=True)


class Said:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def documents(self) -> list[dict[str, Any]]:
        import yaml

        return list(yaml.safe_load_all(self.out))  # as kubectl reads it


@pytest.fixture
def patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(text: str, *options: str) -> Said:
        file = tmp_path / "job.yaml"
        file.write_text(text)
        status = main(["launch", "k8s", "patch", str(file), *options])
        return Said(status, *capsys.readouterr())

    return run


def test_a_job_is_patched_and_the_rest_of_its_text_stays(patch: Any) -> None:
    pytest.importorskip("yaml")
    said = patch(JOB, "--steps", "20-24")
    assert said.status == 0
    payload, job = said.documents
    assert (payload["kind"], payload["metadata"]) == (
        "ConfigMap",
        {"name": "lostflops-boot", "namespace": "team"},
    )
    assert payload["data"] == {k8s_pod.key(path): text for path, text in k8s_objects.payload().items()}
    assert "\n    def " in said.out, "sources are not written as lines"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][-4:] == ["torchrun", "--nproc-per-node", "8", "train.py"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["LOSTFLOPS_RUN"] == "/lostflops/run/nightly/$(LOSTFLOPS_POD)/trainer"
    assert json.loads(env["LOSTFLOPS_SETTINGS"]) == {"steps": [[20, 24]]}
    assert "Job 'nightly': recording trainer" in said.err
    assert "lostflops launch k8s install" in said.err
    rest = iter(said.out[said.out.index("# nightly") :].splitlines())
    for line in JOB.splitlines():
        if "command:" not in line:
            assert line in rest, f"'{line}' is gone"


def test_a_comment_inside_the_command_is_lost_and_that_is_said(patch: Any) -> None:
    said = patch(JOB.replace('["torchrun", ', '["torchrun",  # ranks\n          '))
    assert "1 comment of the YAML could not be kept" in said.err
    assert "comment" not in patch(JOB).err


def test_patching_twice_is_patching_once(patch: Any) -> None:
    for text in (JOB, PYTORCH_JOB, TRAIN_JOB, LIST, "\n---\n".join([JOB, TRAIN_JOB])):
        once = patch(text)
        again = patch(once.out)
        assert again.out == once.out
        assert "already patched: left as it is" in again.err


def test_both_roles_of_a_pytorch_job_are_recorded_once_though_yaml_shares_their_template(patch: Any) -> None:
    pytest.importorskip("yaml")
    said = patch(PYTORCH_JOB)
    roles = said.documents[-1]["spec"]["pytorchReplicaSpecs"]
    assert roles["Master"]["template"] == roles["Worker"]["template"]
    assert len(roles["Master"]["template"]["spec"]["volumes"]) == 2
    valid_pod(roles["Worker"]["template"])
    assert "PyTorchJob 'two' Master: recording pytorch" in said.err
    assert "PyTorchJob 'two' Worker: recording pytorch" in said.err


@pytest.mark.parametrize("newer", [False, True])
def test_a_train_job_takes_volumes_as_a_change_to_its_runtime(patch: Any, newer: bool) -> None:
    pytest.importorskip("yaml")
    said = patch(TRAIN_JOB + ("  runtimePatches: []\n" if newer else ""))
    spec = said.documents[-1]["spec"]
    assert spec["trainer"]["command"][-2:] == ["torchrun", "train.py"]
    assert "volumeMounts" not in spec["trainer"]
    if newer:
        (change,) = spec["runtimePatches"]
        assert change["manager"] == "lostflops.dev/patch"
        (job,) = change["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        assert job["name"] == "node"
        pod = job["template"]["spec"]["template"]["spec"]
    else:
        (change,) = spec["podTemplateOverrides"]
        assert change["targetJobs"] == [{"name": "node"}]
        pod = change["spec"]
    valid_pod({"spec": pod})
    assert [volume["name"] for volume in pod["volumes"]] == ["lostflops-boot", "lostflops-run"]
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == [
        "lostflops-boot",
        "lostflops-run",
    ]


def test_a_train_job_without_a_command_says_where_it_is(patch: Any) -> None:
    said = patch(TRAIN_JOB.replace("    command: [torchrun, train.py]\n", ""))
    assert "its command is in its training runtime" in said.err


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("CronJob", "jobTemplate.spec.template"),
        ("JobSet", "replicatedJobs.0.template.spec.template"),
        ("ClusterTrainingRuntime", "template.spec.replicatedJobs.0.template.spec.template"),
        ("RayCluster", "workerGroupSpecs.0.template"),
        ("LeaderWorkerSet", "leaderWorkerTemplate.workerTemplate"),
        ("Volcano", "tasks.0.template"),
    ],
)
def test_pods_are_found_in_every_kind(patch: Any, kind: str, path: str) -> None:
    inner: Any = {"spec": {"containers": [{"name": "c", "image": "i", "command": ["python", "t.py"]}]}}
    for step in reversed(path.split(".")):
        inner = [{"name": "workers", **inner}] if step == "0" else {step: inner}
    volcano = {"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1"}
    about = volcano if kind == "Volcano" else {"kind": kind, "apiVersion": "x/v1"}
    said = patch(json.dumps({**about, "metadata": {"name": "n"}, "spec": inner}))
    assert re.search(rf"{about['kind']} 'n'( workers)?: recording c", said.err), said.err


def test_what_cannot_be_recorded_is_said(patch: Any) -> None:
    said = patch("kind: MPIJob\nmetadata: {name: m}\n")
    assert "MPIJob 'm': is not patched: sshd starts its ranks" in said.err
    said = patch("kind: Odd\nmetadata: {name: o}\nspec: {pod: {spec: {containers: [{name: c}]}}}\n")
    assert "Odd 'o': is not patched: lostflops does not know this kind; it has pods at `spec.pod`" in said.err
    assert "no pods in these manifests" in patch("kind: Service\nmetadata: {name: s}\n").err


def test_yaml_that_refers_to_itself_a_billion_times_is_read_at_once(patch: Any) -> None:
    lines = ["a0: &a0 {x: y}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    said = patch("kind: Odd\nmetadata: {name: o}\n" + "\n".join(lines) + "\n")
    assert said.status == 0
    assert len(said.out) < 2000


def test_diff_shows_what_changes_only(patch: Any) -> None:
    out = patch(JOB, "--diff").out
    assert out.startswith("--- before\n+++ after\n")
    assert '-        command: ["torchrun", "--nproc-per-node", "8", "train.py"]\n' in out
    assert not [line for line in out.splitlines()[2:] if line.startswith("-") and "command" not in line]


def test_output_may_be_the_input(patch: Any, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    assert patch(JOB, "--output", str(file)).out == ""
    assert "LOSTFLOPS_RUN" in file.read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kind: Pod\na: [\n", "job.yaml is not YAML, line 3"),
        ("a: 1\na: 2\n", "is not YAML"),
        ("- 1\n", "has no `kind`"),
        ("kind: 7\n", "has no `kind`"),
        ("kind: Pod\nspec: [1]\n", "`spec` of the pod is not a mapping"),
        ("kind: Pod\nspec: {containers: {a: 1}}\n", "is not a list of mappings"),
        ("kind: Pod\nspec: {containers: [{name: c, command: python}]}\n", "is not a list of words"),
        ("kind: Job\nspec: {template: []}\n", "is not a mapping"),
        ("kind: JobSet\nspec: {replicatedJobs: 3}\n", "is not a mapping"),
        ("kind: Pod\nmetadata: 3\nspec: {containers: []}\n", "`metadata` of"),
        ("kind: List\nitems: [3]\n", "`items` of the List is not a list of mappings"),
        ("!!python/object/apply:os.system ['true']\n", "has no `kind`"),
        ("\x00", "is not YAML"),
    ],
)
def test_what_is_no_manifest_is_an_error_with_a_hint(patch: Any, text: str, why: str) -> None:
    said = patch(text)
    assert (said.status, said.out) == (2, "")
    assert why in said.err and "\nHint: " in said.err


def test_standard_input_is_a_manifest_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(JOB))
    assert main(["launch", "k8s", "patch", "-"]) == 0
    assert "LOSTFLOPS_RUN" in capsys.readouterr().out


def test_a_file_that_is_no_text_and_a_reader_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert main(["launch", "k8s", "patch", str(file)]) == 2
    assert "job.yaml is not text" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    assert main(["launch", "k8s", "patch", str(file)]) == 2
    assert capsys.readouterr().err.endswith("Hint: run `pip install 'lostflops[k8s]'`.\n")


def test_options_are_checked(patch: Any) -> None:
    for option, value in (("--steps", "4-2"), ("--limit", "much"), ("--pattern", "("), ("--what", "tea")):
        assert patch(JOB, option, value).status == 2
    assert main(["launch", "k8s", "patch", "/nowhere.yaml"]) == 2


def test_every_action_and_flag_is_documented() -> None:
    from argparse import ArgumentParser

    from lostflops.cli.commands.recording.schedulers import k8s

    page = (Path(__file__).parents[3] / "docs" / "reference/commands.md").read_text()
    section = page[page.index("### launch k8s") : page.index("### launch slurm")]
    parser = ArgumentParser()
    k8s.arguments(parser, ())
    (below,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    for name, action in below.items():
        assert re.search(rf"`{name}\b|    {name} ", section), name
        for flag in (word for one in action._actions for word in one.option_strings):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", section), f"{flag} of {name}"
