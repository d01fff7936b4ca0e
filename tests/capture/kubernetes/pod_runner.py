"""Runs the containers of pods as processes of this machine, with what kubelet would give them.

ConfigMaps, Secrets and empty volumes become folders, and paths in the container become paths in those. Names
of services become ports of this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Object = dict[str, Any]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    """A namespace's objects, and the pods that run."""

    def __init__(self, folder: Path, objects: Sequence[Object]) -> None:
        self.folder = folder
        self.objects = {(one["kind"], one["metadata"]["name"]): one for one in objects}
        self.services: dict[str, str] = {}
        self.running: list[subprocess.Popen[str]] = []

    def stop(self) -> None:
        """End what runs here, and what that started in sessions of its own, as torchrun does its ranks: they
        hold the pipes that are read to their ends."""
        mine = f"HOME={self.folder}".encode()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is another user's
                if mine in (place / "environ").read_bytes().split(b"\0"):
                    os.kill(int(place.name), signal.SIGKILL)
        for process in self.running:
            process.communicate()

    def serve(self, deployment: str) -> dict[int, int]:
        """Start the pod of a deployment; its ports, by what it calls them."""
        one = self.objects["Deployment", deployment]
        (container,) = one["spec"]["template"]["spec"]["containers"]
        ports = {int(word): free_port() for word in container["command"] if re.fullmatch("8443|8080", word)}
        container["command"] = [
            str(ports[int(word)]) if word in map(str, ports) else word.replace("0.0.0.0", "127.0.0.1")
            for word in container["command"]
        ]
        self.start(one["spec"]["template"], f"{deployment}-0", {})
        namespace = one["metadata"]["namespace"]
        self.services[f"{deployment}.{namespace}.svc:8443"] = f"127.0.0.1:{ports[8443]}"
        until = time.monotonic() + 20
        for port in ports.values():
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert self.running[-1].poll() is None and time.monotonic() < until, self.running[-1].stderr
                time.sleep(0.05)
        return ports

    def start(self, pod: Object, name: str, image: Mapping[str, str]) -> None:
        """Start the one container of a pod. `image` is the environment that its image sets."""
        (container,) = pod["spec"]["containers"]
        volumes = {one["name"]: self._volume(one, name) for one in pod["spec"].get("volumes", [])}
        mounts = {one["mountPath"]: volumes[one["name"]] for one in container.get("volumeMounts", [])}
        # An image of Python alone has none of our packages, and so has the Python that made this environment.
        bare = container["image"].startswith("python:")
        programs = Path(sys.base_prefix) / "bin" if bare else Path(sys.executable).parent
        env = {"PATH": f"{programs}:/usr/bin:/bin", "HOSTNAME": name, **image}
        env |= {"HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        own: dict[str, str] = {}
        for entry in container.get("env", []):
            value = self._value(entry, name)
            if value is not None:
                own[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: own.get(m[1], m[0]), value)
        words = [*container.get("command", []), *container.get("args", [])]
        words = [re.sub(r"\$\((\w+)\)", lambda m: own.get(m[1], m[0]), word) for word in words]
        self.running.append(
            subprocess.Popen(
                [self._inside(word, mounts) for word in words],
                env={**env, **{key: self._inside(value, mounts) for key, value in own.items()}},
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def finish(self) -> tuple[int, str, str]:
        """Wait for what was started last."""
        out, said = self.running[-1].communicate(timeout=90)
        process = self.running.pop()
        return process.returncode, out, said

    def volume(self, pod: str, name: str) -> Path:
        return self.folder / "volumes" / pod / name

    def _volume(self, one: Object, pod: str) -> Path:
        place = self.volume(pod, one["name"])
        place.mkdir(parents=True)
        for kind, source, field in (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName")):
            if source in one:
                held = self.objects.get((kind, one[source][field]))
                if held is None:
                    assert one[source].get("optional"), f"the pod waits for {one}"
                    continue
                data = held.get("data") or held.get("stringData") or {}
                for item in one[source].get("items") or [{"key": key, "path": key} for key in data]:
                    file = place / item["path"]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(data[item["key"]])
                for folder, _, _ in os.walk(place):
                    Path(folder).chmod(0o555)  # such volumes are mounted read-only
        return place

    def _value(self, entry: Object, pod: str) -> str | None:
        if "valueFrom" not in entry:
            return entry.get("value", "")
        source = entry["valueFrom"]
        if "fieldRef" in source:
            return {"metadata.name": pod}[source["fieldRef"]["fieldPath"]]
        asked = source["secretKeyRef"]
        secret = self.objects.get(("Secret", asked["name"]))
        assert secret is not None or asked["optional"]
        return None if secret is None else secret["stringData"][asked["key"]]

    def _inside(self, text: str, mounts: Mapping[str, Path]) -> str:
        for path, folder in sorted(mounts.items(), reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(path)}(?![\w-])", str(folder), text)
        for service, address in self.services.items():
            text = text.replace(service, address)
        return text

    def remove(self) -> None:
        for folder, _, _ in os.walk(self.folder):
            Path(folder).chmod(0o755)
        shutil.rmtree(self.folder)
