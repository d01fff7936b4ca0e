"""Sentences of the page of one rank that were false: of pauses inside graphs, of copies behind other work and
beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lostflops
from made_runs import Job, Work, made

US = 1_000
THREAD = 7


def decoding(copies: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Four tokens: a graph of 20 kernels of 8 µs with pauses of 2 µs, and a value of 4 bytes that is read."""
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [{"rank": 0, "end": 4 * 260 * US, "device_kind": "gpu", "main_thread": THREAD}],
        "steps": [], "kernels": [], "copies": [], "launches": [],
    }  # fmt: skip
    for token in range(4):
        at = 260 * US * token
        tables["steps"].append({"step": token, "start": at, "end": at + 260 * US, "source": "range"})
        graph = {"start": at, "end": at + 5 * US, "thread": THREAD}
        tables["launches"].append({**graph, "name": "cudaGraphLaunch", "correlation": 10 + 10 * token})
        launched = {"launch_start": at, "launch_end": at + 5 * US, "thread": THREAD, "stream": 7}
        for number in range(20):
            start = at + (10 + 10 * number) * US
            tables["kernels"].append(
                {"start": start, "end": start + 8 * US, "family": "gemm", "correlation": 10 + 10 * token}
                | launched
            )
        if copies:
            asked = {"launch_start": at + 6 * US, "launch_end": at + 8 * US, "thread": THREAD, "stream": 7}
            start = at + 210 * US
            tables["copies"].append(
                {"start": start, "end": start + 2 * US, "bytes": 4, "direction": "device to host"}
                | {"host_memory": "pageable", "correlation": 11 + 10 * token}
                | asked
            )
    return tables


def test_pauses_of_work_before_a_copy_are_not_what_the_copy_costs(tmp_path: Path) -> None:
    """The copy waits behind the graph for 202 µs. The GPU does nothing for 40 of them: 2 are the copy's."""
    page = lostflops.why(made(tmp_path, decoding()))
    (answer,) = (a for a in page.answers if a.recipe.name == "copy_summary_by_time")
    assert answer.table["idle_in_calls"].to_list() == [4 * 2 * US]
    assert not any("ageable" in finding.claim for finding in page.findings if finding.size > 10 * US)


def test_pauses_inside_a_graph_are_not_to_be_mended_by_graphs(tmp_path: Path) -> None:
    page = lostflops.why(made(tmp_path, decoding(copies=False)))
    (found,) = (finding for finding in page.findings if finding.name == "late-after-launch")
    assert found.evidence[0] == "38.0 µs of it between kernels of one CUDA graph"
    assert "CUDA graphs shorten" not in found.next and found.remedies == ()


def prefetching(memory: str = "pinned", of: int = 600) -> dict[str, list[dict[str, Any]]]:
    """Four steps of 1 ms, which compute for 400 µs and from 200 on bring in the next batch, for 600."""
    rows = range(0, 4000 * US, 1000 * US)
    launch = {"launch_start": 0, "launch_end": 2, "thread": THREAD}
    ends = {"rank": 0, "device_kind": "gpu", "main_thread": THREAD, "end": 4000 * US}
    copied = {"direction": "host to device", "host_memory": memory, "bytes": 1 << 20, "stream": 9}
    return {
        "ranks": [ends],
        "steps": [{"step": at // US, "start": at, "end": at + 1000 * US} for at in rows],
        "kernels": [
            {"start": at, "end": at + 400 * US, "family": "gemm", "stream": 7} | launch for at in rows
        ],
        "copies": [
            {"start": at + 200 * US, "end": at + (200 + of) * US} | copied | launch for at in rows
        ],
    }  # fmt: skip


def test_copies_that_run_beside_compute_from_pinned_memory_are_not_to_be_pinned(tmp_path: Path) -> None:
    """Nothing hides 400 of the 600 µs; they are on a second stream already."""
    (found,) = (
        f for f in lostflops.why(made(tmp_path, prefetching())).findings if f.name == "copies-exposed"
    )
    assert found.claim.startswith("Copies that nothing hides cost 400 µs per step (40.0 %)")
    assert found.next.startswith("They run beside other work already") and found.remedies == ()


def test_copies_that_run_all_the_time_cannot_start_earlier(tmp_path: Path) -> None:
    """They take 960 µs of each step of 1 ms: the link is busy, and 600 µs of compute hide 200 of them."""
    (found,) = (
        f for f in lostflops.why(made(tmp_path, prefetching(of=960))).findings if f.name == "copies-exposed"
    )
    assert found.next.startswith("They run all the time") and "start them earlier does not" in found.next


@pytest.mark.parametrize(
    ("each", "said"), [(3, "but these take 3.00 µs on average"), (30, "nothing here is")]
)
def test_a_gpu_that_is_busy_with_tiny_kernels_is_not_called_well(
    tmp_path: Path, each: int, said: str
) -> None:
    """They follow each other without a pause; fused, they would take a fraction of the time."""
    launch = {"launch_start": 0, "launch_end": 2, "thread": THREAD}
    length = 40 * each * US
    page = lostflops.why(
        made(
            tmp_path,
            {
                "ranks": [{"rank": 0, "device_kind": "gpu", "main_thread": THREAD, "end": 4 * length}],
                "steps": [{"step": n, "start": n * length, "end": (n + 1) * length} for n in range(4)],
                "kernels": [
                    {"start": n * each * US, "end": (n + 1) * each * US, "family": "elementwise", **launch}
                    for n in range(160)
                ],
            },
        )
    )
    assert not [finding for finding in page.findings if finding.size] and said in page.no_finding


@pytest.mark.parametrize(
    ("softmax", "flash", "said"),
    [
        (
            "softmax_warp_forward<float, float, float, 11, false, false>",
            False,
            "but 60.0 % of compute is softmax",
        ),
        (
            "softmax_warp_forward<float, float, float, 11, true, false>",  # a loss
            False,
            "but 60.0 % of compute is elementwise work, reductions, norms and copies: `torch.compile` fuses",
        ),
        (
            "softmax_warp_forward<float, float, float, 11, false, false>",
            True,
            "but 54.5 % of compute is elementwise work, reductions, norms and copies: `torch.compile` fuses",
        ),
    ],
)
def test_attention_without_a_kernel_of_its_own_is_not_called_well(
    tmp_path: Path, softmax: str, flash: bool, said: str
) -> None:
    """Of 100 µs in a layer products take 40, softmax 20, and the scale and the mask 20 each."""
    launch = {"launch_start": 0, "launch_end": 2, "thread": THREAD, "stream": 7}
    layer = [(40, "gemm", "gemm"), (20, "scale", "elementwise"), (20, "mask", "elementwise")]
    layer += [(20, softmax, "reduction")] + [(10, "flash_fwd", "attention")] * flash
    kernels: list[dict[str, Any]] = []
    at = 0
    for _ in range(40):
        for length, name, family in layer:
            row = {"start": at * US, "end": (at + length) * US, "name": name, "family": family}
            kernels.append(row | launch)
            at += length
    length = at * US // 4
    tables = {
        "ranks": [{"rank": 0, "device_kind": "gpu", "main_thread": THREAD, "end": 4 * length}],
        "steps": [{"step": n, "start": n * length, "end": (n + 1) * length} for n in range(4)],
        "kernels": kernels,
    }
    page = lostflops.why(made(tmp_path, tables))
    assert not [finding for finding in page.findings if finding.size] and said in page.no_finding
    assert ("scaled_dot_product_attention" in page.no_finding) == ("softmax" in said)


def test_pages_that_move_by_themselves_are_not_to_be_overlapped_on_a_stream(tmp_path: Path) -> None:
    tables = prefetching("managed")
    for row in tables["copies"]:
        row |= {"direction": "migration to host", "launch_start": None, "launch_end": None}
    page = lostflops.why(made(tmp_path, tables))
    (found,) = (finding for finding in page.findings if finding.name == "copies-exposed")
    assert found.next.startswith("Managed memory moves page by page")
    assert found.doubt == "Managed memory moves without a call: what waits for it is not known."


def test_each_of_two_remedies_has_its_command(tmp_path: Path) -> None:
    page = lostflops.why(made(tmp_path, Job(transfer=0).run([[Work(loads=20)]] * 4)))
    asked = [line.split() for line in str(page).splitlines() if "lostflops remedy " in line]
    assert [words[words.index("remedy", 1) + 1] for words in asked] == ["loader-workers", "tokenise-ahead"]


def test_a_checkpoint_that_copies_is_no_logging_and_is_told_in_one_sentence(tmp_path: Path) -> None:
    """It saves for 18 ms in one step of twelve, 3 of them copying: 1.5 ms of a mean step of 41.5."""
    saves = Work(saves=18, copies=3, direction="device to host")
    steps = [[saves if number == 6 else Work()] for number in range(12)]
    (found, *_) = lostflops.why(made(tmp_path, Job(transfer=0).run(steps))).findings
    assert found.claim == (
        "Checkpoints hold the job up for 18.0 ms once in 12 steps, in step 6 (1.50 ms per step, 3.6 %), "
        "copies included."
    )
    assert found.remedies == ("async-checkpoint",)


def test_a_checkpoint_gains_its_copies_once(tmp_path: Path) -> None:
    """It holds the CPU for 20 ms, 5 of which it copies; that is all, and none of it is hidden."""
    saves = Work(saves=20, copies=5, direction="device to host")
    (found, *_) = lostflops.why(made(tmp_path, Job(transfer=0).run([[saves]] * 3))).findings
    assert (found.size, found.ns_per_step) == (20_000 * US, 20_000 * US)
    assert not any("hidden today" in fact for fact in found.evidence)


@pytest.mark.parametrize(("waits", "remedies"), [(False, ()), (True, ("pinned-copies",))])
def test_what_is_pinned_is_not_to_be_pinned(tmp_path: Path, waits: bool, remedies: tuple[str, ...]) -> None:
    """A batch of 10 ms from pinned memory: `.to(device)` waits for it where it is not told to go on."""
    tables = Job(transfer=0).run([[Work(copies=10)]] * 3)
    wait = {"name": "cudaStreamSynchronize", "thread": THREAD}
    tables["launches"] = [
        {"rank": 0, "start": copy["start"] + 4 * US, "end": copy["end"] + US, **wait} if waits
        else {"rank": 0, "start": copy["end"] + 9 * US, "end": copy["end"] + 9000 * US, **wait}
        for copy in tables["copies"]
    ]  # fmt: skip
    (found, *_) = lostflops.why(made(tmp_path, tables)).findings
    assert (found.name, found.remedies) == ("copies-exposed", remedies)
    assert ("Those to the GPU are pinned" in found.next) is not waits


@pytest.mark.parametrize("waits", ["call", "operator"])
def test_a_copy_that_returns_when_it_is_there_is_a_wait(tmp_path: Path, waits: str) -> None:
    """`.item()` waits in `cudaMemcpyAsync`, or nothing says in which call; 150 µs of Python follow."""
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("kernels", "copies", "launches", "operators", "steps")
    }
    for at in range(0, 12 * 600 * US, 600 * US):
        launch = {"launch_start": at, "launch_end": at + 6 * US, "thread": THREAD, "stream": 7}
        ran = {"start": at + 10 * US, "end": at + 410 * US}
        tables["kernels"].append({**ran, "family": "gemm", **launch})
        back = at + (414 if waits == "call" else 13) * US
        call = {"launch_start": at + 8 * US, "launch_end": back, "thread": THREAD, "stream": 7}
        tables["copies"].append(
            {"start": at + 411 * US, "end": at + 413 * US, "bytes": 4, "direction": "device to host"} | call
        )
        tables["launches"].append(
            {"start": at + 8 * US, "end": back, "thread": THREAD, "name": "cudaMemcpyAsync"}
        )
        if waits == "operator":
            item = {"start": at + 7 * US, "end": at + 420 * US, "thread": THREAD}
            tables["operators"].append({"name": "aten::item", **item})
    tables["steps"] = [{"step": n, "start": 3600 * US * n, "end": 3600 * US * (n + 1)} for n in range(2)]
    tables["ranks"] = [{"rank": 0, "end": 7200 * US, "device_kind": "gpu", "main_thread": THREAD}]
    page = lostflops.why(made(tmp_path, tables))
    assert page.verdict.startswith("Synchronisation-bound")
    assert page.findings[0].name == "host-waits-for-device"
    assert page.findings[0].size > 6 * 170 * US
