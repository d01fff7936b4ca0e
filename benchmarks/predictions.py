"""How far offload plans are from what steps then take: predicted peak and step beside measured ones.

    python benchmarks/predictions.py [--only NAME] [--wall] [--json benchmarks/predictions.json]

On a CPU. Each configuration is planned from a profile; then it is profiled, run as it is and run as planned,
in turns. Steps take the processor's time, which a busy machine changes least; copies take a launch and their
bytes at a rate on that clock. With `--wall` all is on the wall clock, copies are slowed down on threads of
their own: that needs a quiet machine with two cores. Gates: the peak within 5 %, the median step within 10 %,
bytes moved where a plan says so, and a refusal where the step fits.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests" / "optimize"), str(ROOT / "tests" / "optimize" / "activations")]

import torch  # noqa: E402

import tiny_models as models  # noqa: E402
from lostflops.optimize import ThreadedDevice  # noqa: E402
from lostflops.optimize.device import peak  # noqa: E402
from lostflops.optimize.device.peak import address_of  # noqa: E402
from predicted_steps import Configuration, CpuTimeDevice, Outcome, outcome  # noqa: E402

PEAK, STEP = 0.05, 0.10
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class ThrottledDevice(ThreadedDevice):
    """Copies take `launch_ns` and their bytes at a rate each way, one after the other on each stream."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        self._given = configuration
        self._host: set[int] = set()
        self._free_ns: dict[Any, int] = {}  # when each stream's last copy ends

    def host_memory(self, nbytes: int) -> torch.Tensor:
        memory = super().host_memory(nbytes)
        peak.is_host_memory(memory)
        self._host.add(address_of(memory.untyped_storage()))
        return memory

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        out = address_of(target.untyped_storage()) in self._host
        rate = self._given.out if out else self._given.into
        took = self._given.launch_ns + round(1e9 * target.numel() / rate)

        def slowly() -> None:
            # From the end of the one before, if that was just now: a sleep that is too long is made up for.
            now = time.perf_counter_ns()
            last = self._free_ns.get(stream, 0)
            end = (last if now - last < 500_000 else now) + took
            self._free_ns[stream] = end
            target.copy_(source)
            time.sleep(max(0, end - time.perf_counter_ns()) / 1e9)

        stream.put(slowly)


def configurations() -> Iterator[Configuration]:
    """Sizes at which a step takes most of a second on one core: far more than the hooks on what is saved."""

    def llama(layers: int = 3, **more: Any) -> Any:
        return models.llama(layers, 512, max_position_embeddings=1024, **more)

    def lora(layers: int = 3, **more: Any) -> Any:
        return models.lora(llama(layers), **more)

    def some(name: str, model: Callable[[], Any], tokens: tuple[int, int], **more: Any) -> Configuration:
        return Configuration(name, model, partial(models.llama_batch, *tokens), **more)

    every = partial(lora, targets=LINEAR, dropout=0.1)
    yield some("full, hidden", llama, (128, 4), budget=0.85, out=5e8, into=5e8)
    yield some("full, waited for", llama, (128, 4), budget=0.93, out=1e8, into=1.2e8)
    yield some("full, one way slow", llama, (128, 4), budget=0.85, out=8e8, into=6e7)
    yield some("full, long sequence", llama, (512, 1), budget=0.93, out=3e8, into=3e8)
    yield some("LoRA q, v", lora, (128, 4), budget=0.92, out=4e8, into=4e8)
    yield some("LoRA everywhere, dropout", every, (96, 4), budget=0.8, out=4e8, into=4e8)
    yield some(
        "LoRA, checkpointed", partial(lora, 6), (128, 4), budget=0.97, out=2e8, into=2e8, checkpointed=True
    )
    yield some("full, recomputed", llama, (128, 4), budget=0.85, out=8e8, into=8e8, does="recompute")
    yield some("full, both", llama, (128, 4), budget=0.75, out=8e8, into=8e8, does="both")
    yield some("full, fits", llama, (128, 4), budget=1.0, out=8e8, into=8e8)
    yield some("LoRA, fits", lora, (96, 4), budget=1.2, out=8e8, into=8e8)


def line(found: Outcome) -> list[str]:
    """A row of the table: what was planned, and predicted beside measured."""
    which = "without" if found.refused else "planned"
    predicted = found.plan["predicted"]
    step, top = found.errors(which)
    says = "keeps: it fits" if (found.refused or "").startswith("it fits") else found.refused or _does(found)
    return [
        found.name,
        says,
        f"{found.peak_bytes('without') / 1e6:.1f}",
        f"{predicted['peak_bytes'] / 1e6:.1f}",
        f"{found.peak_bytes(which) / 1e6:.1f}",
        f"{top:+.1%}",
        f"{found.step_ns('without') / 1e6:.0f}",
        f"{predicted['step_ns'] / 1e6:.0f}",
        f"{found.step_ns(which) / 1e6:.0f}",
        f"{step:+.1%}",
    ]


def _does(found: Outcome) -> str:
    predicted = found.plan["predicted"]
    does: list[str] = []
    if predicted["bytes_out"]:
        does.append(f"moves {predicted['bytes_out'] / 1e6:.1f} MB, {predicted['hidden_share']:.0%} hidden")
    if "recompute" in found.plan["classes"].values():
        does.append(f"computes again for {predicted['recompute_ns'] / 1e6:.0f} ms")
    return "; ".join(does)


HEADER = [
    "",
    "plan",
    "peak MB as it is",
    "predicted",
    "measured",
    "",
    "step ms as it is",
    "predicted",
    "measured",
    "",
]


def failures(found: Outcome) -> Iterator[str]:
    """The gates that an outcome misses."""
    fits = found.name.endswith("fits")
    if fits != (found.refused or "").startswith("it fits") or bool(found.refused) != fits:
        yield f"{found.name}: {found.refused or 'a plan, though it fits'}"
        return
    step, top = found.errors("without" if fits else "planned")
    if abs(top) > PEAK:
        yield f"{found.name}: peak {top:+.1%}"
    if abs(step) > STEP:
        yield f"{found.name}: step {step:+.1%}"
    if found.plan["predicted"]["bytes_out"] and not found.moved_bytes():
        yield f"{found.name}: nothing moved"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="configurations whose name has this in it")
    parser.add_argument("--rounds", type=int, default=5, help="profiles, and steps of each way to run")
    parser.add_argument("--wall", action="store_true", help="on the wall clock")
    parser.add_argument("--json", help="the raw records, to a file")
    given = parser.parse_args()
    _keep_memory()
    torch.set_num_threads(1)
    found: list[Outcome] = []
    for one in configurations():
        if given.only is None or given.only in one.name:
            found.append(outcome(one, ThrottledDevice if given.wall else CpuTimeDevice, given.rounds))
            print("  ".join(line(found[-1])), flush=True)
            if given.json:
                _write(Path(given.json), found)
    missed = [text for one in found for text in failures(one)]
    print(
        *(missed or [f"all {len(found)} within {PEAK:.0%} of the peak and {STEP:.0%} of the step"]), sep="\n"
    )
    return 1 if missed else 0


def _keep_memory() -> None:
    """The C library gives large tensors back to the kernel at once; every new one then costs page faults."""
    wanted = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
    if any(name not in os.environ for name in wanted):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)


def _write(file: Path, found: Sequence[Outcome]) -> None:
    content = {
        "what": "benchmarks/predictions.py, on a CPU with a throttled link; not on a GPU",
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "outcomes": [{"name": one.name, "plan": one.plan, "measured": one.measured} for one in found],
        "table": [HEADER, *(line(one) for one in found)],
        "missed": [text for one in found for text in failures(one)],
    }
    file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
