"""AMD GPUs, from what their driver shows in /sys/class/drm. Not verified on an AMD GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostflops.machine.monitor.host import content, number
from lostflops.machine.monitor.metrics import MetricValue

VENDOR = b"0x1002"


@dataclass(frozen=True)
class AmdCard:
    """A GPU, and the files that it has: (metric, file, divisor, whether it changes)."""

    device: int
    folder: Path
    files: tuple[tuple[str, Path, int, bool], ...]


class Amd:
    """The AMD GPUs of a node, numbered as their cards are; `root` stands for `/` in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        cards = [
            folder / "device"
            for folder in (root / "sys/class/drm").glob("card*")
            if folder.name[4:].isdigit() and content(folder / "device/vendor").strip() == VENDOR
        ]
        cards.sort(key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.parent.name)])
        self.cards = [_card(device, folder) for device, folder in enumerate(cards)]

    def facts(self) -> Iterator[Mapping[str, Any]]:
        for card in self.cards:
            yield {
                "kind": "device",
                "device": card.device,
                "vendor": "amd",
                "gpu": content(card.folder / "product_name").decode(errors="replace").strip() or None,
                "memory": number(card.folder / "mem_info_vram_total"),
            }

    def read(self, thorough: bool) -> Iterator[MetricValue]:
        for card in self.cards:
            for metric, path, divisor, changes in card.files:
                value = number(path) if thorough or changes else None
                if value is not None:
                    yield MetricValue(metric, card.device, None, value if divisor == 1 else value / divisor)


def _card(device: int, folder: Path) -> AmdCard:
    sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder)
    # Newer chips give the power of the instant only, older ones the mean only.
    power = sensors / "power1_input"
    if not power.exists():
        power = sensors / "power1_average"
    files = [
        ("gpu_utilisation", folder / "gpu_busy_percent", 1, True),
        ("gpu_memory_utilisation", folder / "mem_busy_percent", 1, True),
        ("gpu_memory_used", folder / "mem_info_vram_used", 1, True),
        ("gpu_memory_total", folder / "mem_info_vram_total", 1, False),
        ("gpu_power", power, 1_000_000, True),
        ("gpu_power_limit", sensors / "power1_cap", 1_000_000, False),
        ("gpu_sm_clock", sensors / "freq1_input", 1_000_000, True),
        ("gpu_memory_clock", sensors / "freq2_input", 1_000_000, True),
        ("gpu_temperature", sensors / "temp1_input", 1000, True),
        ("gpu_memory_temperature", sensors / "temp3_input", 1000, True),
        ("gpu_pcie_replay", folder / "pcie_replay_count", 1, False),
    ]
    return AmdCard(device, folder, tuple(entry for entry in files if entry[1].exists()))
