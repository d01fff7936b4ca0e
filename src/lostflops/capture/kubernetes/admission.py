"""The webhook's answer to a question of the API server: the question's document in, the answer's out.

The answer always admits the pod. Whatever goes wrong here becomes a warning, never a refusal.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from lostflops.capture.kubernetes.pod import DOMAIN, Wish, mapping, objects, record
from lostflops.capture.record import recording
from lostflops.capture.record.recording import DEFAULT_STEPS, Recording
from lostflops.errors import BadManifest, BadOption, LostflopsError, shown

VERSION = "admission.k8s.io/v1"
LABEL = f"{DOMAIN}/record"
SYSTEM = ("kube-system", "kube-public", "kube-node-lease")
# Who a pod belongs to, the outermost first.
OWNERS = (
    "trainer.kubeflow.org/trainjob-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
ASKED = ("steps", "ranks", "what", "every", "duration")  # annotations by which a pod says what to record
# A pod of training has a few. To look at thousands takes longer than the API server waits.
MOST_CONTAINERS = 200
MOST_BYTES = 3 << 19  # what etcd takes of one object: a pod that is larger cannot be kept anyway
LONGEST_WARNING = 250  # the API server cuts off what is longer


def review(document: Any, wish: Wish, own_namespace: str = "", size: int = 0) -> dict[str, Any]:
    """The answer to an AdmissionReview of so many bytes. Raises BadManifest for a document that is none."""
    if not isinstance(document, Mapping):
        raise BadManifest("not an AdmissionReview")
    asked: Mapping[str, Any] = document  # pyright: ignore[reportUnknownVariableType]
    if asked.get("kind") != "AdmissionReview" or asked.get("apiVersion") != VERSION:
        raise BadManifest(f"not an AdmissionReview of {VERSION}")
    request = mapping(asked, "request", "the AdmissionReview")
    uid = request.get("uid")
    if not isinstance(uid, str):
        raise BadManifest("the request has no uid")
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    warnings: list[str] = []
    try:
        if size > MOST_BYTES:
            raise BadManifest(f"the pod has {size:,} bytes, more than {MOST_BYTES:,}")
        change = list(_changes(request, wish, own_namespace, warnings))
        if change:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(change).encode()).decode()
    except Exception as error:  # whatever it is: the pod is admitted, only not recorded
        warnings.append(f"not recorded: {error}")
    if warnings:
        response["warnings"] = [f"lostflops: {shown(text)}"[:LONGEST_WARNING] for text in warnings]
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}


def _changes(
    request: Mapping[str, Any], wish: Wish, own_namespace: str, warnings: list[str]
) -> Iterator[dict[str, Any]]:
    pod = request.get("object")
    if mapping(request, "kind", "the request").get("kind") != "Pod" or not isinstance(pod, dict):
        return
    if request.get("operation") != "CREATE" or request.get("namespace") in (*SYSTEM, own_namespace):
        return
    metadata = mapping(pod, "metadata", "the pod")  # pyright: ignore[reportUnknownArgumentType]
    labels = mapping(metadata, "labels", "the pod")
    if labels.get(LABEL) == "disabled":
        return
    count = len(objects(mapping(pod, "spec", "the pod"), "containers", "the pod"))  # pyright: ignore[reportUnknownArgumentType]
    if count > MOST_CONTAINERS:
        warnings.append(f"not recorded: the pod has {count:,} containers, more than {MOST_CONTAINERS}")
        return
    changed: dict[str, Any] = deepcopy(pod)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    wish = replace(wish, settings={**wish.settings, **_asked(metadata, warnings)})
    said = record(changed, _job(metadata), wish)
    if not said.recorded:
        warnings.extend(said.notes)
    yield from differences(pod, changed)


def _asked(metadata: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    """What a pod's annotations say about its recording."""
    annotations = mapping(metadata, "annotations", "the pod")
    given = {name: annotations.get(f"{DOMAIN}/{name}") for name in ASKED}
    try:
        return settings(**{name: str(text) for name, text in given.items() if text is not None})
    except LostflopsError as error:
        warnings.append(f"annotations {DOMAIN} are ignored: {error.message}")
        return {}


def settings(
    steps: str | None = None,
    ranks: str | None = None,
    what: str | None = None,
    every: str | None = None,
    duration: str | None = None,
) -> dict[str, Any]:
    """The recorder's settings for options as they are typed. Raises BadOption."""
    found: dict[str, Any] = {}
    if every is not None and not every.isdecimal():
        raise BadOption(f"'{shown(every)}' is not a number of steps.", "write `--every 1000`.")
    when = Recording(
        (),
        Path(),
        steps=DEFAULT_STEPS if steps is None else recording.steps(steps),
        every=int(every or 0),
        duration=None if duration is None else recording.seconds("--duration", duration),
    )
    if steps is not None:
        found["steps"] = [[a] if b is None else [a, b] for a, b in when.steps]
    if every is not None:
        found["every"] = when.every
    if duration is not None:
        found["duration"] = when.duration
    if ranks is not None:
        found["ranks"] = recording.ranks(ranks)
    if what is not None:
        asked = recording.what(what)
        found |= {kind: kind in asked for kind in recording.WHAT}
    return found


def _job(metadata: Mapping[str, Any]) -> str:
    labels = mapping(metadata, "labels", "the pod")
    for label in OWNERS:
        if labels.get(label):
            return str(labels[label])
    owners = metadata.get("ownerReferences")
    if isinstance(owners, list) and owners and isinstance(owners[0], dict) and owners[0].get("name"):  # pyright: ignore[reportUnknownMemberType]
        return str(owners[0]["name"])  # pyright: ignore[reportUnknownArgumentType]
    return str(metadata.get("name") or metadata.get("generateName") or "pod").rstrip("-")


def differences(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """The JSON Patch (RFC 6902) that makes `new` of `old`. Lists of mappings only grow."""
    before, after = _children(old), _children(new)
    if before is None or after is None or isinstance(old, list) != isinstance(new, list):
        if old != new:
            yield {"op": "replace", "path": path, "value": new}
        return
    for name, value in after.items():
        where = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name in before:
            yield from differences(before[name], value, where)
        else:
            yield {"op": "add", "path": f"{path}/-" if isinstance(new, list) else where, "value": value}


def _children(value: Any) -> dict[str, Any] | None:
    """What is inside, by its part of a path: of mappings and of lists of mappings."""
    held: Any = value  # the checks below would make its type unknown
    if isinstance(value, dict):
        return dict(held)
    if isinstance(value, list) and all(isinstance(one, dict) for one in held):
        return {str(place): one for place, one in enumerate(held)}
    return None
