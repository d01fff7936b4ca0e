"""What the GPU computes only to be read: counted in the bound of the finding about waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from by_hand import MS, WAITS, finding, page
from lostflops.recipes.idle.read_values import FEW, computed_to_be_read
from made_runs import THREAD, made

US = 1_000
STEP = 10_000 * US
READS = 20


def job(
    between: int = 2, call: str = "cudaStreamSynchronize", reads: int = READS
) -> dict[str, list[dict[str, Any]]]:
    """Four steps of 10 ms: the GPU multiplies for 5, and then so many times computes so many kernels of 20 µs
    that the CPU waits for; it launches each 60 µs after the one before had ended."""
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("ranks", "steps", "kernels", "launches", "operators")
    }
    tables["ranks"] = [{"end": 4 * STEP, "device_kind": "gpu", "main_thread": THREAD, "world_size": 1}]
    for step in range(4):
        begin = step * STEP
        tables["steps"].append(
            {"step": step, "start": begin, "end": begin + STEP, "host_start": begin, "complete": True}
        )

        def launch(at: int, runs: int, family: str) -> int:
            call = {"start": at, "end": at + 5 * US, "thread": THREAD, "correlation": len(tables["kernels"])}
            tables["launches"].append(call | {"name": "cudaLaunchKernel"})
            launched = {"launch_start": at, "launch_end": at + 5 * US, "thread": THREAD}
            one = {"start": at + 5 * US, "end": at + 5 * US + runs, "name": family, "family": family}
            tables["kernels"].append(one | launched | {"correlation": call["correlation"], "stream": 7})
            return at + 5 * US + runs

        now = launch(begin, 5_000 * US, "gemm")
        for _ in range(reads):
            for _ in range(between):
                now = launch(now + 60 * US, 20 * US, "reduction")
            tables["launches"].append(
                {"start": now - 10 * US, "end": now + 2 * US, "thread": THREAD, "name": call}
            )
    return tables


def read(folder: Path, **of: Any) -> int:
    trace = made(folder, job(**of))
    counted = trace.table("steps")
    assert counted is not None
    return computed_to_be_read(trace, counted.select("rank", "step").collect())


def test_few_kernels_between_two_waits_may_be_there_for_what_is_read(tmp_path: Path) -> None:
    """Of 20 reads in each of four steps, all but the first: before that stands the product as well. A copy of
    HIP's that returns when done is such a wait."""
    expected = 4 * 19 * 2 * 20 * US
    assert read(tmp_path / "a") == expected
    assert read(tmp_path / "b", call="hipMemcpyWithStream") == expected
    assert read(tmp_path / "c", call="cudaMemcpyAsync") == 0


def test_many_kernels_between_two_waits_are_there_for_more(tmp_path: Path) -> None:
    assert FEW == 16
    assert read(tmp_path / "a", between=17, reads=3) == 0
    assert read(tmp_path / "b", between=16, reads=3) == 4 * 2 * 16 * 20 * US


def test_the_bound_of_waits_counts_what_is_computed_to_be_read() -> None:
    """Ten steps of 100 ms wait 20 ms each; kernels between the waits run for 3 ms: 23 ms can go."""
    rows = [(0, step, account, ms) for step in range(10) for account, ms in (("compute", 80), (WAITS, 20))]
    waits = finding("host-waits-for-device", WAITS, 20)
    (told,) = page(waits, ledger=rows, to_be_read=30 * MS)
    assert (told.size, told.ns_per_step) == (20 * MS, 23 * MS)
    assert told.evidence == (
        "kernels between those waits take 3.00 ms per step, which the bound counts as well",
    )
    (told,) = page(waits, ledger=rows, to_be_read=9 * MS)  # less than a hundredth of a step
    assert (told.ns_per_step, told.evidence) == (20 * MS, ())
