"""The Helm chart is what its generator writes, and renders to valid objects. Helm itself is not asked."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from lostflops.cli import main

yaml = pytest.importorskip("yaml")
pytest.importorskip("ruamel.yaml")
CHART = Path(__file__).parents[3] / "deploy" / "helm" / "lostflops"


def rendered(values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """What helm makes of a template that holds nothing but values and the namespace."""
    text = (CHART / "templates" / "webhook.yaml").read_text()
    text = text.replace("{{ .Release.Namespace }}", namespace)
    text = re.sub(r"\{\{ \.Values\.(\w+) \}\}", lambda found: str(values[found[1]]), text)
    assert "{{" not in text
    return list(yaml.safe_load_all(text))


def test_the_chart_is_what_its_generator_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    from lostflops.capture.kubernetes.objects import chart

    for name, text in chart().items():
        assert (CHART / name).read_text() == text, "run `python deploy/generate.py`"


def test_the_chart_renders_to_the_objects_of_the_manifests(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    validate = pytest.importorskip("kubernetes_validate").validate
    assert main(["launch", "k8s", "certificate", "--namespace", "tools"]) == 0
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    values |= yaml.safe_load(capsys.readouterr().out)
    objects = rendered(values, "tools")
    for one in objects:
        validate(one, "1.37", strict=True)
    by_kind = {one["kind"]: one for one in objects}
    secret = base64.b64decode(by_kind["Secret"]["data"]["tls.key"])
    assert secret.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert main(["launch", "k8s", "manifests", "--namespace", "tools"]) == 0
    printed = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}
    for kind in ("Service", "MutatingWebhookConfiguration"):
        for one in (printed[kind], by_kind[kind]):
            for entry in one.get("webhooks", []):
                entry["clientConfig"].pop("caBundle")
        assert printed[kind] == by_kind[kind]
    (container,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert by_kind["Deployment"]["spec"]["replicas"] == 2
    assert container["image"] == values["image"]


def test_the_charts_command_is_one_of_ours() -> None:
    from lostflops.cli import parser

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    deployment = next(one for one in rendered(values, "tools") if one["kind"] == "Deployment")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    given = parser(command[1:]).parse_args(command[1:])
    assert (given.action, given.namespace, given.port) == ("serve", "tools", 8443)
