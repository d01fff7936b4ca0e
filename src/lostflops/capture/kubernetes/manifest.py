"""Kubernetes manifests: where their pod templates are; read and written with comments and order kept."""

# What a YAML reader gives has no types: it is looked at before it is used.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lostflops.capture.kubernetes.pod import (
    PAYLOAD,
    STATUS,
    Object,
    Said,
    Wish,
    mapping,
    matches,
    objects,
    record,
    set_up,
    volumes,
)
from lostflops.errors import BadManifest, MissingExtra, Unreadable, shown

# From an object to its pod templates; '*' stands for every element of a list or every value of a mapping.
TEMPLATES: Mapping[str, Sequence[str]] = {
    "Pod": ("",),
    "Job": ("spec.template",),
    "Deployment": ("spec.template",),
    "StatefulSet": ("spec.template",),
    "DaemonSet": ("spec.template",),
    "ReplicaSet": ("spec.template",),
    "CronJob": ("spec.jobTemplate.spec.template",),
    "JobSet": ("spec.replicatedJobs.*.template.spec.template",),
    "TrainingRuntime": ("spec.template.spec.replicatedJobs.*.template.spec.template",),
    "ClusterTrainingRuntime": ("spec.template.spec.replicatedJobs.*.template.spec.template",),
    "PyTorchJob": ("spec.pytorchReplicaSpecs.*.template",),
    "RayCluster": ("spec.headGroupSpec.template", "spec.workerGroupSpecs.*.template"),
    "RayJob": (
        "spec.rayClusterSpec.headGroupSpec.template",
        "spec.rayClusterSpec.workerGroupSpecs.*.template",
    ),
    "LeaderWorkerSet": (
        "spec.leaderWorkerTemplate.leaderTemplate",
        "spec.leaderWorkerTemplate.workerTemplate",
    ),
}
VOLCANO = ("spec.tasks.*.template",)  # also of kind Job
# Of MPI the ranks are started by sshd, which hands on nothing of a container's environment.
REFUSED = {
    "MPIJob": "sshd starts its ranks and does not pass the environment on: put `lostflops record` "
    "into the launcher's command, with `mpirun -x PYTHONPATH`"
}
NODE = "node"  # what Kubeflow calls the training job of a TrainJob, and its container
MANAGER = "lostflops.dev/patch"


def yaml(like: str = "") -> Any:
    """The reader and writer that keeps comments, order and quotes, and writes lists as `like` does."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.representer import RoundTripRepresenter
    except ImportError as error:
        raise MissingExtra("Reading and writing manifests", "k8s") from error

    class Readable(RoundTripRepresenter):
        """Writes text of several lines as lines. What was read keeps the style that it had."""

    def text(representer: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return representer.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Readable.add_representer(str, text)
    made = YAML()
    made.Representer = Readable
    made.preserve_quotes = True
    made.width = 4096
    indented = re.search(r"^( *)[^\s#-][^\n]*:[ \t]*\n\1  +- ", like, re.MULTILINE)
    made.indent(mapping=2, sequence=4 if indented else 2, offset=2 if indented else 0)
    return made


def read(path: Path) -> tuple[str, list[Object]]:
    """The text of a file and its documents, empty ones left out. '-' is standard input."""
    reader = yaml()
    from ruamel.yaml.error import YAMLError

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise Unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise BadManifest(f"{path.name} is not text") from error
    try:
        found = [one for one in reader.load_all(text) if one is not None]
    except (YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise BadManifest(
            f"{path.name} is not YAML{line}: {problem}", "a manifest is YAML or JSON."
        ) from error
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
            raise BadManifest(f"a document of {path.name} has no `kind`")
    return text, found


def written(documents: Sequence[Mapping[str, Any]], like: str = "") -> str:
    """The documents as YAML."""
    into = io.StringIO()
    yaml(like).dump_all(documents, into)
    return into.getvalue()


def patch(document: Object, wish: Wish) -> list[tuple[str, Said]]:
    """Have every pod template of a document recorded; what came of each, by where it is."""
    kind = str(document.get("kind"))
    if kind == "List":
        return [said for item in objects(document, "items", "the List") for said in patch(item, wish)]
    metadata = mapping(document, "metadata", kind)
    job = str(metadata.get("name") or metadata.get("generateName") or kind).rstrip("-")
    name = f"{kind} '{shown(job)}'"
    if kind in REFUSED:
        return [(name, Said((), [f"is not patched: {REFUSED[kind]}"]))]
    if kind == "TrainJob":
        return [(name, _train_job(document, job, wish))]
    if kind not in TEMPLATES:
        return [
            (name, Said((), [f"is not patched: lostflops does not know this kind; it has pods at `{where}`"]))
            for where in _unknown(document, set())
        ]
    seen: dict[int, Said] = {}  # templates that YAML anchors share are one
    found = [(where, template) for path in _paths(document) for where, template in _walk(document, path)]
    for _, template in found:
        if id(template) not in seen:
            seen[id(template)] = record(template, job, wish)
    return [(f"{name} {where}".rstrip(), seen[id(template)]) for where, template in found]


def missing_payloads(documents: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """The namespaces of the pods of these documents that have no payload among the documents."""
    every = [
        one
        for document in documents
        for one in (objects(document, "items", "the List") if document["kind"] == "List" else [document])
    ]
    named = [(str(one.get("kind")), mapping(one, "metadata", "an object")) for one in every]
    there = {
        about.get("namespace")
        for kind, about in named
        if kind == "ConfigMap" and about.get("name") == PAYLOAD
    }
    needed = {
        about.get("namespace"): None for kind, about in named if kind in TEMPLATES or kind == "TrainJob"
    }
    return [namespace for namespace in needed if namespace not in there]


def _paths(document: Mapping[str, Any]) -> Sequence[str]:
    if document.get("kind") == "Job" and "volcano" in str(document.get("apiVersion")):
        return VOLCANO
    return TEMPLATES.get(str(document["kind"]), ())


def _walk(holder: Any, path: str, where: str = "") -> Iterator[tuple[str, Object]]:
    step, _, rest = path.partition(".")
    if step == "*" and isinstance(holder, list | dict):
        inside = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for label, one in inside:
            named = (
                isinstance(holder, list)
                and isinstance(one, dict)
                and (one.get("name") or one.get("groupName"))
            )
            yield from _walk(one, rest, str(named or label))
    elif not isinstance(holder, dict):
        raise BadManifest(f"what should hold `{path or 'containers'}` is not a mapping")
    elif not path:
        yield where, holder
    elif holder.get(step) is not None:
        yield from _walk(holder[step], rest, where)


def _unknown(holder: Any, seen: set[int], path: str = "") -> Iterator[str]:
    """Where an object of a kind that we do not know has pod templates. What YAML shares is looked at once."""
    if id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, dict):
        spec = holder.get("spec")
        if path and isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield path
        for name, below in holder.items():
            yield from _unknown(below, seen, f"{path}.{name}".lstrip("."))
    elif isinstance(holder, list):
        for place, below in enumerate(holder):
            yield from _unknown(below, seen, f"{path}.{place}")


def _train_job(document: Object, job: str, wish: Wish) -> Said:
    """A TrainJob has its command in itself and takes volumes only as a change to its runtime."""
    spec = mapping(document, "spec", "the TrainJob")
    trainer = mapping(spec, "trainer", "the TrainJob")
    if STATUS in mapping(mapping(document, "metadata", "the TrainJob"), "annotations", "the TrainJob"):
        return Said((), ["already patched: left as it is"])
    if not matches(trainer, wish):
        return Said((), [f"its command does not match `{wish.pattern}`"])
    reason = set_up(trainer, NODE, job, wish, wish.size)
    if reason:
        if not trainer.get("command"):
            reason = (
                "its command is in its training runtime: patch the runtime, or set "
                "`trainer.command` in the TrainJob"
            )
        return Said((), [f"is not recorded: {reason}"])
    # `spec.trainer` is a new mapping where the manifest had none.
    spec["trainer"] = trainer
    pod: Object = {
        "volumes": volumes(wish, wish.size),
        "containers": [{"name": NODE, "volumeMounts": trainer.pop("volumeMounts")}],
    }
    # Not STATUS: that on the pod would keep the webhook from nothing, its volume does.
    metadata = document.setdefault("metadata", {})
    if metadata.get("annotations") is None:
        metadata["annotations"] = {}
    metadata["annotations"][STATUS] = f"set up to record {NODE}"
    if "runtimePatches" in spec or str(document.get("apiVersion")).endswith("/v2alpha1"):
        inner: Object = {"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}
        change = {
            "manager": MANAGER,
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [inner]}}},
        }
        spec["runtimePatches"] = [*objects(spec, "runtimePatches", "the TrainJob"), change]
        return Said([NODE], [])
    change = {"targetJobs": [{"name": NODE}], "spec": pod}
    spec["podTemplateOverrides"] = [*objects(spec, "podTemplateOverrides", "the TrainJob"), change]
    note = "written as `podTemplateOverrides`; a Kubeflow Trainer that uses `runtimePatches` needs that "
    return Said([NODE], [note + "key in the manifest before patching: add `runtimePatches: []`"])
