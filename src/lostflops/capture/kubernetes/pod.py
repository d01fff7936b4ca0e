"""What a pod is given so that its training is recorded: two volumes, some variables and a wrapped command.

Nothing here asks a cluster: the template of a pod is changed in place, and what became of it is returned.
`launch k8s patch` and the webhook both use it. The webhook's container holds a Python and nothing else, so
this file imports what needs no installation.

No image, container, resource, account or security setting is touched. A container that is added could keep
the pod from starting, if its image cannot be pulled for example, and then the job would be the victim.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from lostflops.capture.record.recording import deaf
from lostflops.errors import BadManifest, shown

DOMAIN = "lostflops.dev"
STATUS = f"{DOMAIN}/status"
BOOT, RESULTS = "/lostflops/boot", "/lostflops/run"
BOOT_VOLUME, RESULTS_VOLUME = "lostflops-boot", "lostflops-run"
PAYLOAD = "lostflops-boot"  # the ConfigMap that holds what goes into the job
COLLECTOR = "lostflops-collector"  # the Secret that says where results go; without it they stay in the pod
PATTERN = r"torchrun|accelerate|deepspeed|python|ray start|dask[ -]worker"
RECORDS_ITSELF = re.compile(r"\blostflops(-rank\b| record\b)")
SIZE = 4 << 30
KEPT = 0.75  # of the volume: the kubelet evicts a pod whose volume outgrows its limit
FROM_SECRET = {
    "LOSTFLOPS_COLLECTOR": "url",
    "LOSTFLOPS_COLLECTOR_CA": "ca.crt",
    "LOSTFLOPS_COLLECTOR_TOKEN": "token",
}
# A pod's `env` would replace the PYTHONPATH that the image sets, so the command adds to what it finds.
# Kubernetes itself replaces only '$(NAME)', which neither text holds.
THROUGH_PYTHON = (
    "import sys;sys.path=[p for p in sys.path if p];import os;"  # not an os.py of the job's folder
    "b='/lostflops/boot';p=os.environ.get('PYTHONPATH');"
    "os.path.isfile(b+'/sitecustomize.py') and os.environ.update(PYTHONPATH=b+os.pathsep+p if p else b);"
    "os.execvp(sys.argv[1],sys.argv[1:])"
)
THROUGH_SHELL = (
    "if [ -f /lostflops/boot/sitecustomize.py ]; then "
    'export PYTHONPATH="/lostflops/boot${PYTHONPATH:+:$PYTHONPATH}"; fi; exec "$@"'
)
UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
}

Object = MutableMapping[str, Any]


@dataclass(frozen=True)
class Wish:
    """What is to be recorded in which containers, and where it goes."""

    files: Sequence[str]  # the payload's, relative to its folder
    pattern: str = PATTERN
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])  # other than the payload's own
    claim: str | None = None  # a persistent volume claim for the results
    size: int = SIZE
    force: bool = False  # set PYTHONPATH where the command is unknown, over what the image has


@dataclass(frozen=True)
class Said:
    """What became of a template: the containers that will be recorded, and what the user should know."""

    recorded: Sequence[str]
    notes: Sequence[str]


def record(template: Object, job: str, wish: Wish) -> Said:
    """Change a pod, or the template of one, in place. A template that was changed before stays as it is."""
    spec = mapping(template, "spec", "the pod")
    containers = objects(spec, "containers", "the pod")
    if any(volume.get("name") == BOOT_VOLUME for volume in objects(spec, "volumes", "the pod")):
        return Said((), ["already patched: left as it is"])
    system = mapping(spec, "os", "the pod").get("name") or mapping(spec, "nodeSelector", "the pod").get(
        "kubernetes.io/os"
    )
    if system == "windows":
        return Said((), ["not recorded: Windows pods are not supported"])
    recorded: list[str] = []
    notes: list[str] = []
    refused: list[str] = []
    size = _size(containers, wish)
    for container in containers:
        name = shown(str(container.get("name")))
        if not matches(container, wish):
            notes.append(f"container '{name}' is not recorded: its command does not match `{wish.pattern}`")
            continue
        reason = set_up(container, name, job, wish, size)
        if reason:
            refused.append(f"container '{name}' is not recorded: {reason}")
        else:
            recorded.append(name)
    if recorded:
        _extend(spec, "volumes", volumes(wish, size))
    if recorded or refused:
        status = "; ".join([*([f"set up to record {', '.join(recorded)}"] if recorded else []), *refused])
        _annotate(template, status)
    return Said(recorded, [*refused, *notes])


def matches(container: Mapping[str, Any], wish: Wish) -> bool:
    """Whether it looks like training, or has nothing to be looked at."""
    words = [*strings(container, "command"), *strings(container, "args")]
    if re.search(wish.pattern, " ".join(words)):
        return True
    return not container.get("command") and (wish.force or not words)


def set_up(container: Object, name: str, job: str, wish: Wish, size: int) -> str:
    """Have one container recorded; otherwise leave it as it is and say why."""
    env = objects(container, "env", f"container '{name}'")
    known = {str(entry.get("name")): entry for entry in env}
    mounts = objects(container, "volumeMounts", f"container '{name}'")
    command = strings(container, "command")
    flag = deaf(command or strings(container, "args"))
    if flag:
        return f"`{shown(command[0] if command else 'python')} {flag}` makes Python ignore PYTHONPATH"
    if RECORDS_ITSELF.search(" ".join([*command, *strings(container, "args")])):
        return "its command already runs lostflops"
    if "LOSTFLOPS_RUN" in known or "LOSTFLOPS_OFF" in known:
        return "its environment sets LOSTFLOPS_RUN or LOSTFLOPS_OFF"
    if any(str(mount.get("mountPath", "")).startswith("/lostflops") for mount in mounts):
        return "another volume is mounted at /lostflops"
    path = known.get("PYTHONPATH")
    if path is not None and "valueFrom" not in path:
        # The pod's own value replaces the image's already.
        container["env"] = env = deepcopy(env)
        own = next(entry for entry in env if entry.get("name") == "PYTHONPATH")
        own["value"] = ":".join(filter(None, [BOOT, own.get("value")]))
    elif command and re.fullmatch(r"(python|pypy)[\d.]*t?", PurePosixPath(command[0]).name):
        container["command"] = [command[0], "-ES", "-c", THROUGH_PYTHON, *command]
    elif command:
        container["command"] = ["/bin/sh", "-c", THROUGH_SHELL, "sh", *command]
    elif wish.force and path is None:
        _extend(container, "env", [{"name": "PYTHONPATH", "value": BOOT}])
    else:
        return "it sets no command, and lostflops cannot see the image's default command"
    _extend(container, "env", _variables(name, job, wish, size))
    boot = {"name": BOOT_VOLUME, "mountPath": BOOT, "readOnly": True}
    _extend(container, "volumeMounts", [boot, {"name": RESULTS_VOLUME, "mountPath": RESULTS}])
    return ""


def _extend(holder: Object, name: str, more: Sequence[Object]) -> None:
    """Append to a list that other parts of a YAML document may share, without changing it for those."""
    own: Any = deepcopy(holder.get(name))
    holder[name] = [*more] if own is None else own
    if own is not None:
        own.extend(more)


def _annotate(template: Object, status: str) -> None:
    metadata: Any = template.get("metadata")
    if metadata is None:
        metadata = template["metadata"] = {}
    if not metadata.get("annotations"):
        metadata["annotations"] = {}
    metadata["annotations"][STATUS] = status


def _variables(name: str, job: str, wish: Wish, size: int) -> list[Object]:
    found: list[Object] = [
        {"name": "LOSTFLOPS_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LOSTFLOPS_RUN", "value": f"{RESULTS}/{tidy(job)}/$(LOSTFLOPS_POD)/{tidy(name)}"},
    ]
    if wish.settings:
        found.append({"name": "LOSTFLOPS_SETTINGS", "value": json.dumps(wish.settings, sort_keys=True)})
    if wish.claim is None:
        found.append({"name": "LOSTFLOPS_LIMIT", "value": str(int(size * KEPT))})
        for variable, key in FROM_SECRET.items():
            secret = {"name": COLLECTOR, "key": key, "optional": True}
            found.append({"name": variable, "valueFrom": {"secretKeyRef": secret}})
    return found


def volumes(wish: Wish, size: int) -> list[Object]:
    """The payload, which may be missing without harm, and the place of the results."""
    items = [{"key": key(path), "path": path} for path in wish.files]
    payload = {"name": PAYLOAD, "optional": True, "items": items}
    if wish.claim is None:
        results: Object = {"emptyDir": {"sizeLimit": f"{size >> 20}Mi"}}
    else:
        results = {"persistentVolumeClaim": {"claimName": wish.claim}}
    return [{"name": BOOT_VOLUME, "configMap": payload}, {"name": RESULTS_VOLUME, **results}]


def key(path: str) -> str:
    """A file's key in the ConfigMap, where no '/' may stand."""
    return path.replace("/", "__")


def _size(containers: Sequence[Mapping[str, Any]], wish: Wish) -> int:
    """The volume's limit: the volume counts towards what the pod may write in all, where that is limited."""
    size = wish.size
    for container in containers:
        limits = mapping(mapping(container, "resources", "a container"), "limits", "a container")
        allowed = quantity(str(limits.get("ephemeral-storage", "")))
        if allowed:
            size = min(size, allowed // 4)
    return max(size, 1 << 20)


def quantity(text: str) -> int | None:
    """Bytes of '4Gi', '500M' or '1e9'; None for what is no quantity."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)(?:([kMGTP]|[KMGTP]i)|e(\d{1,2}))?", text.strip())
    if not found:
        return None
    return int(float(found[1]) * UNITS[found[2] or ""] * 10 ** int(found[3] or 0))


def tidy(name: str) -> str:
    """A name as one part of a path."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name).strip(".-")[:200] or "job"


def mapping(holder: Mapping[str, Any], name: str, what: str) -> Object:
    found = holder.get(name)
    if found is None:
        return {}
    if not isinstance(found, MutableMapping):
        raise BadManifest(f"`{name}` of {what} is not a mapping")
    return found  # pyright: ignore[reportUnknownVariableType]


def objects(holder: Mapping[str, Any], name: str, what: str) -> Sequence[Object]:
    found = holder.get(name)
    if found is None:
        return []
    if not isinstance(found, Sequence) or not all(isinstance(one, MutableMapping) for one in found):  # pyright: ignore[reportUnknownVariableType]
        raise BadManifest(f"`{name}` of {what} is not a list of mappings")
    return found  # pyright: ignore[reportUnknownVariableType]


def strings(holder: Mapping[str, Any], name: str) -> Sequence[str]:
    found = holder.get(name)
    if found is None:
        return []
    if (
        isinstance(found, str)
        or not isinstance(found, Sequence)
        or not all(isinstance(one, str) for one in found)  # pyright: ignore[reportUnknownVariableType]
    ):
        raise BadManifest(f"`{name}` of a container is not a list of words")
    return found  # pyright: ignore[reportUnknownVariableType]
