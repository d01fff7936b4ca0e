"""The Kubernetes objects that recording needs: the payload of jobs, a namespace's collector, the webhook.

The webhook and the collector run on any image that has Python 3.11: their source comes in a ConfigMap, so no
image has to be built. The chart has the webhook run on an image of lostflops instead.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.capture.kubernetes.admission import LABEL, SYSTEM
from lostflops.capture.kubernetes.certificate import Certificate
from lostflops.capture.kubernetes.pod import COLLECTOR, DOMAIN, PATTERN, PAYLOAD, SIZE, key
from lostflops.capture.record import new_run
from lostflops.capture.record.recording import Recording

Object = dict[str, Any]

WEBHOOK = "lostflops"
WEBHOOK_PROGRAM, COLLECTOR_PROGRAM = (
    "lostflops.capture.kubernetes.webhook",
    "lostflops.capture.kubernetes.collector",
)
IMAGE = "python:3.12-slim"
PORT, READ_PORT = 8443, 8080
NOBODY = 65532
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": NOBODY,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESOURCES = {"cpu": "1", "memory": "512Mi"}


@cache
def payload() -> Mapping[str, str]:
    """What goes into a job, by path: the folder that `record` would make for it."""
    with tempfile.TemporaryDirectory() as place:
        recording = Recording([], Path(place) / "run")
        new_run.write(recording)
        made = sorted(file for file in recording.boot.rglob("*") if file.is_file())
        files = {str(file.relative_to(recording.boot)): file.read_text("utf-8") for file in made}
    settings = json.loads(files[run_folder.SETTINGS])
    # Nobody knows when a pod will start, and equal payloads are to be equal text.
    files[run_folder.SETTINGS] = (
        json.dumps({**settings, **({"began": 0.0} if "began" in settings else {})}) + "\n"
    )
    return files


def program(module: str) -> Mapping[str, str]:
    """The sources of a module and of all of lostflops that it imports, by path.

    The packages themselves are empty here: importing `lostflops` needs more than these have.
    """
    found: dict[str, str] = {}
    left = [module]
    while left:
        name = left.pop()
        path = f"{name.replace('.', '/')}.py"
        if path in found or not name.startswith("lostflops."):
            continue
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:  # the name of something inside a module
            continue
        if spec is None or spec.origin is None or spec.submodule_search_locations is not None:
            continue
        found[path] = Path(spec.origin).read_text("utf-8")
        for node in _runs(ast.parse(found[path])):
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                outer = name.split(".")[: -node.level] if node.level else []
                origin = ".".join([*outer, *filter(None, [node.module])])
                left += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    packages = {str(above) for path in found for above in Path(path).parents if str(above) != "."}
    found |= {f"{package}/__init__.py": "" for package in packages}
    return dict(sorted(found.items()))


def _runs(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, but for what only type checkers read."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for below in ast.iter_child_nodes(node):
        yield from _runs(below)


def config_map(name: str, namespace: str | None, files: Mapping[str, str]) -> Object:
    data = {key(path): text for path, text in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named(name, namespace), "data": data}


def payload_map(namespace: str | None) -> Object:
    """The ConfigMap from which a job's containers are recorded."""
    return config_map(PAYLOAD, namespace, payload())


def collector(namespace: str, image: str, size: int, days: int, update: bool = False) -> list[Object]:
    """What a namespace needs for its pods to be recorded and the results kept until they are fetched.

    An update leaves out the Secret: with another token and certificate, pods that run could send no more.
    """
    from lostflops.capture.kubernetes.certificate import certificate

    made = certificate([COLLECTOR, f"{COLLECTOR}.{namespace}", f"{COLLECTOR}.{namespace}.svc"], days)
    secret = {
        "ca.crt": made.authority,
        "tls.crt": made.certificate,
        "tls.key": made.key,
        "token": secrets.token_hex(24),
        "url": f"https://{COLLECTOR}.{namespace}.svc:{PORT}",
    }
    files = program(COLLECTOR_PROGRAM)
    arguments = ["--folder", "/results/kept", "--certificate", "/certificate", "--host", "0.0.0.0"]
    arguments += ["--port", str(PORT), "--read-port", str(READ_PORT), "--limit", str(size * 9 // 10)]
    volumes = [
        {"name": "results", "emptyDir": {"sizeLimit": f"{size >> 20}Mi"}},
        {"name": "certificate", "secret": {"secretName": COLLECTOR}},
    ]
    return [
        payload_map(namespace),
        config_map(f"{COLLECTOR}-program", namespace, files),
        *([] if update else [_secret(COLLECTOR, namespace, secret)]),
        _service(COLLECTOR, namespace),
        _deployment(
            COLLECTOR,
            namespace,
            image,
            _from_sources(COLLECTOR_PROGRAM, arguments),
            [*volumes, _program_volume(f"{COLLECTOR}-program", files)],
            replicas=1,
        ),
    ]


def webhook(
    namespace: str, image: str, made: Certificate, pattern: str = PATTERN, size: int = SIZE
) -> list[Object]:
    """The webhook and all it needs, on an image that has nothing but Python."""
    files = {**program(WEBHOOK_PROGRAM), "payload.json": json.dumps(sorted(payload()))}
    arguments = ["--certificate", "/certificate", "--payload", "/program/payload.json"]
    arguments += _answering(namespace, pattern, size)
    objects = _webhook(
        namespace,
        image,
        made,
        _from_sources(WEBHOOK_PROGRAM, arguments),
        [_program_volume(f"{WEBHOOK}-program", files)],
    )
    (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
    # Kubernetes starts the pods anew when their template changes, not when a ConfigMap does.
    version = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    deployment["spec"]["template"]["metadata"]["annotations"] = {f"{DOMAIN}/program": version}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        config_map(f"{WEBHOOK}-program", namespace, files),
        *objects,
    ]


def webhook_of_image(
    namespace: str, image: str, made: Certificate, pattern: str = PATTERN, size: int = SIZE
) -> list[Object]:
    """The webhook on an image that has lostflops, as in the chart."""
    command = ["lostflops", "launch", "k8s", "serve", "--certificate", "/certificate"]
    runs = {"command": [*command, *_answering(namespace, pattern, size)]}
    return _webhook(namespace, image, made, runs, [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}])


def _answering(namespace: str, pattern: str, size: int) -> list[str]:
    where = ["--host", "0.0.0.0", "--port", str(PORT), "--namespace", namespace]
    return [*where, "--pattern", pattern, "--limit", str(size)]


def _webhook(
    namespace: str, image: str, made: Certificate, runs: Object, volumes: Sequence[Object]
) -> list[Object]:
    secret = {"tls.crt": made.certificate, "tls.key": made.key}
    certificate = {"name": "certificate", "secret": {"secretName": f"{WEBHOOK}-certificate"}}
    return [
        _secret(f"{WEBHOOK}-certificate", namespace, secret),
        _service(WEBHOOK, namespace),
        _deployment(WEBHOOK, namespace, image, runs, [certificate, *volumes], replicas=2),
        registration(namespace, made.authority),
    ]


def registration(namespace: str, authority: str) -> Object:
    """Which pods the API server asks about. The selectors of one entry must all hold, so there are two."""
    enabled = {"matchLabels": {LABEL: "enabled"}}
    elsewhere = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": [*SYSTEM, namespace],
    }
    undecided = {"key": LABEL, "operator": "NotIn", "values": ["enabled", "disabled"]}
    bundle = authority if authority.startswith("{{") else _base64(authority)

    def entry(name: str, namespaces: Object, pods: Object) -> Object:
        return {
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 5,
            "reinvocationPolicy": "IfNeeded",
            "clientConfig": {
                "service": {"name": WEBHOOK, "namespace": namespace, "path": "/mutate", "port": PORT},
                "caBundle": bundle,
            },
            "rules": [
                {
                    "operations": ["CREATE"],
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                    "scope": "Namespaced",
                }
            ],
            "namespaceSelector": {**namespaces, "matchExpressions": [elsewhere]},
            "objectSelector": pods,
        }

    made = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [
            entry("pod.lostflops.dev", {}, enabled),
            entry("namespace.lostflops.dev", enabled, {"matchExpressions": [undecided]}),
        ],
    }
    return json.loads(json.dumps(made))  # or YAML would show what is shared


def _named(name: str, namespace: str | None) -> Object:
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def _secret(name: str, namespace: str, fields: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _named(name, namespace),
        "type": "Opaque",
        "stringData": dict(fields),
    }


def _service(name: str, namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _named(name, namespace),
        "spec": {"selector": {"app": name}, "ports": [{"name": "https", "port": PORT, "targetPort": PORT}]},
    }


def _from_sources(module: str, arguments: Sequence[str]) -> Object:
    """How a container runs a module of ours on an image that has nothing but Python."""
    return {
        "command": ["python3", "-m", module, *arguments],
        "env": [
            {"name": "PYTHONPATH", "value": "/program"},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        ],
    }


def _program_volume(name: str, files: Mapping[str, str]) -> Object:
    items = [{"key": key(path), "path": path} for path in files]
    return {"name": "program", "configMap": {"name": name, "items": items}}


def _deployment(
    name: str,
    namespace: str,
    image: str,
    runs: Object,
    volumes: Sequence[Object],
    *,
    replicas: int,
) -> Object:
    mounts = [
        {
            "name": volume["name"],
            "mountPath": f"/{volume['name']}",
            **({} if "emptyDir" in volume else {"readOnly": True}),
        }
        for volume in volumes
    ]
    container = {
        "name": name,
        "image": image,
        **runs,
        "ports": [{"name": "https", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT, "scheme": "HTTPS"}},
        "resources": {"requests": dict(RESOURCES), "limits": dict(RESOURCES)},
        "securityContext": json.loads(json.dumps(RESTRICTED)),
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _named(name, namespace),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "RollingUpdate" if replicas > 1 else "Recreate"},
            "template": {
                "metadata": {"labels": {"app": name, LABEL: "disabled"}},
                "spec": {
                    "automountServiceAccountToken": False,
                    "securityContext": {"fsGroup": NOBODY},
                    "containers": [container],
                    "volumes": list(volumes),
                },
            },
        },
    }


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def chart() -> Mapping[str, str]:
    """The files of the Helm chart: the same objects, with places for what differs."""
    from lostflops.capture.kubernetes.manifest import written
    from lostflops.version import __version__

    place = Certificate("{{ .Values.authority }}", "{{ .Values.certificate }}", "{{ .Values.key }}")
    objects = webhook_of_image(
        "{{ .Release.Namespace }}", "{{ .Values.image }}", place, "{{ .Values.pattern }}"
    )
    for one in objects:
        if one["kind"] == "Secret":
            one["data"] = one.pop("stringData")  # the values are base64 already
        if one["kind"] == "Deployment":
            one["spec"]["replicas"] = "{{ .Values.replicas }}"
    text = written(objects).replace("'{{ .Values.replicas }}'", "{{ .Values.replicas }}")
    about = {
        "apiVersion": "v2",
        "name": "lostflops",
        "description": "Has training pods recorded without a change to their images.",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
    }
    values = {
        "image": "lostflops:" + __version__,
        "replicas": 2,
        "pattern": PATTERN,
        "authority": "",
        "certificate": "",
        "key": "",
    }
    return {
        "Chart.yaml": written([about]),
        "values.yaml": VALUES + written([values]),
        "templates/webhook.yaml": text,
    }


VALUES = """\
# An image that has lostflops installed: deploy/Dockerfile makes one. The last three, in base64, are what
# `lostflops launch k8s certificate --namespace NS` prints, for the namespace that the chart is installed in.
"""
