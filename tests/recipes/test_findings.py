"""What findings say: of which time, added up over what, and what they cannot know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from lostflops.finding import Finding
from lostflops.recipe import Rows
from lostflops.recipes import named
from lostflops.recipes.communication.exposed import HIDDEN_TOO
from lostflops.testing import on_example

MS = 1_000_000
INSIDE = "80.0 % of the communication inside steps is exposed"


def found(recipe: str, **given: Rows) -> list[Finding]:
    known = named(recipe)
    return list(known.findings(on_example(known, given)))


def row(start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"start": start * MS, "end": end * MS, **more}


def exposed(ranks: int, world_size: int | None, steps: Sequence[tuple[int, int]] = ((0, 30),)) -> Finding:
    """Ranks that communicate from 10 to 50 ms, of which 4 ms are hidden and some in no step."""
    one = found(
        "communication_exposed",
        kernels=[row(8, 14, rank=rank, family="gemm") for rank in range(ranks)],
        collectives=[row(10, 50, rank=rank) for rank in range(ranks)],
        steps=[row(*step, rank=rank) for rank in range(ranks) for step in steps],
        ranks=[{"rank": rank, "world_size": world_size} for rank in range(ranks)],
    )
    assert len(one) == 1
    return one[0]


def test_exposed_communication_is_claimed_of_the_time_that_its_gain_is_of() -> None:
    finding = exposed(ranks=1, world_size=1)
    assert finding.claim == "Communication that no computation hides costs 16.0 ms per step (53.3 %)."
    assert finding.evidence == (f"{INSIDE}: 16.0 ms of 20.0 ms", HIDDEN_TOO)
    assert finding.cost_per_step == 16 * MS
    # All 20 ms of communication may hold up something; the compute stream leaves 24 of the 30 ms free.
    assert finding.ns_in_steps == 20 * MS


def test_only_what_was_added_up_is_called_that() -> None:
    two_steps = ((0, 15), (15, 30))
    assert exposed(1, 1, two_steps).evidence[0] == f"{INSIDE}: 16.0 ms of 20.0 ms, added up over steps"
    assert exposed(2, 2).evidence[0] == f"{INSIDE}: 32.0 ms of 40.0 ms, added up over ranks"
    both = exposed(2, 2, two_steps).evidence[0]
    assert both == f"{INSIDE}: 32.0 ms of 40.0 ms, added up over ranks and steps"


@pytest.mark.parametrize("world_size", [8, None])
def test_one_rank_of_several_is_not_sent_to_a_recipe_that_compares_ranks(world_size: int | None) -> None:
    advice = exposed(1, world_size).next
    assert "lostflops recipe" not in advice and "give the traces of all ranks" in advice


def test_how_far_waiting_can_be_told_follows_from_the_ranks_that_are_here() -> None:
    whole, some = exposed(2, 2).next, exposed(2, 8).next
    assert whole.startswith(
        "`lostflops recipe communication-wait` shows how much of it is waiting for a late rank;"
    )
    assert "for process groups of which all ranks are here" in some


def test_matrix_work_outside_steps_is_not_claimed_of_steps() -> None:
    (finding,) = found(
        "precision_mix",
        kernels=[
            row(0, 60, family="convolution", precision="fp32", tensor_cores=False),
            row(60, 80, family="gemm", precision="fp32", tensor_cores=False),
            row(80, 90, family="gemm", precision="bf16", tensor_cores=True),
        ],
        steps=[row(50, 70), row(70, 90)],
    )
    assert finding.claim == "Matrix work in fp32 without tensor cores takes 15.0 ms per step (75.0 %)."
    assert finding.evidence == (
        "75.0 % of the matrix work inside steps",
        "gemm: 10.0 ms per step",
        "convolution: 5.00 ms per step",
    )
    assert finding.ns_in_steps == 30 * MS


def pageable(**launch: int) -> Finding:
    batch = {"host_memory": "pageable", "direction": "host to device"}
    (finding,) = found(
        "copy_summary_by_time",
        copies=[
            row(20, 24, **batch, **{name: at * MS for name, at in launch.items()}),
            row(150, 190, host_memory="pinned", direction="host to device"),
            row(205, 206, **batch),
        ],
        kernels=[row(26, 100), row(145, 195)],
        steps=[row(0, 200)],
    )
    return finding


def test_pageable_copies_cost_what_their_calls_let_the_device_idle() -> None:
    finding = pageable(launch_start=11, launch_end=23)
    assert finding.name == "copies-pageable"
    assert finding.claim == "Copies from or to pageable memory cost 13.0 ms per step (6.5 %)."
    assert finding.evidence[0] == (
        "nothing hides 4.00 ms of the 4.00 ms that one copy takes, and the GPU idles another 9.00 ms in "
        "calls that copy"
    )
    assert (finding.gain, finding.ns_in_steps) == ("at most", 13 * MS)


@pytest.mark.parametrize(
    ("direction", "remedies", "advice"),
    [
        ("host to device", None, "Pin the host's memory: `DataLoader(pin_memory=True)`"),
        ("device to host", (), "Copy into pinned memory with `non_blocking=True`, and read it once"),
    ],
)
def test_a_loader_that_pins_does_not_help_what_is_copied_off_the_device(
    direction: str, remedies: tuple[str, ...] | None, advice: str
) -> None:
    (finding,) = found(
        "copy_summary_by_time",
        copies=[row(10, 14, host_memory="pageable", direction=direction)],
        steps=[row(0, 100)],
    )
    assert (finding.name, finding.remedies) == ("copies-pageable", remedies)
    assert finding.next.startswith(advice)


def test_copies_of_two_directions_that_cost_alike_are_most_in_neither() -> None:
    def claim(longer: int) -> str:
        back = row(50, 60 + longer, host_memory="pinned", direction="device to host")
        copies = [row(10, 20, host_memory="pinned", direction="host to device"), back]
        return found("copy_summary_by_time", copies=copies, steps=[row(0, 100)])[0].claim

    assert claim(0).endswith("(20.0 %), device to host and host to device.")
    assert claim(6).endswith("(26.0 %), most of it device to host.")


def test_copies_of_one_rank_cost_a_mean_rank_half_of_two() -> None:
    (finding,) = found(
        "copy_summary_by_time",
        copies=[row(10, 50, host_memory="pinned", direction="device to host")],
        steps=[row(0, 100), row(0, 60, rank=1)],
        ranks=[{"rank": 0}, {"rank": 1}],
    )
    assert (
        finding.claim
        == "Copies that nothing hides cost 20.0 ms per step (20.0 %), most of it device to host."
    )
    assert finding.cost_per_step == 20 * MS


def test_a_call_that_holds_the_host_beside_work_costs_no_more_than_the_device_idles_elsewhere() -> None:
    # The call waits for 8 ms of kernels after its copy; the device idles 20 + 2 + 45 + 5 ms in all.
    finding = pageable(launch_start=20, launch_end=34)
    assert (finding.gain, finding.ns_in_steps) == ("at most", (4 + 2 + 8) * MS)


def test_the_gain_of_pageable_copies_is_unknown_without_their_launches() -> None:
    finding = pageable()
    assert (finding.gain, finding.ns_in_steps) == ("unknown", 0)
    assert finding.doubt.startswith("Launches of some copies were not recorded")


def test_ranks_of_a_slice_wait_for_one_that_is_not_among_them() -> None:
    known = named("communication_imbalance")
    blamed = {"collectives": 3, "last": 3, "blame_share": 1.0, "step_share": 0.2, "lead": 9, "at_most": 5}
    of_others = {"collectives": 3, "last": 0, "blame": 0, "unmatched": 0, "assumed": 0}
    rows = [
        {"rank": 5, "blame": 50, "per_step": 8, **blamed},
        *({"rank": rank, "own_wait": own, **of_others} for rank, own in ((1, 20), (3, 30))),
    ]
    table = pl.DataFrame(rows, schema={c: holds.dtype for c, holds in known.columns.items()})
    (finding,) = known.findings(table)
    claim = "Rank 5 arrives last in 3 of the collectives of these ranks; 100.0 % of all waiting is for it."
    assert finding.claim == claim
    assert finding.evidence[2:] == ("the others wait 20 ns to 30 ns each",)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.25, "cost 25.0 ms of transfer per step (25.0 %)."),
        (36.9, "queue up: 37 of them are under way at any time."),
    ],
)
def test_small_operations_whose_times_overlap_are_said_to_queue(share: float, said: str) -> None:
    rows = {
        "group": ["0"], "kind": ["all-reduce"], "bytes": [16_600], "calls_per_step": [100.0],
        "per_step": [round(share * 100_000_000)], "step_share": [share],
    }  # fmt: skip
    (one,) = named("communication_summary").findings(pl.DataFrame(rows))
    assert one.claim == f"100 small all-reduce operations of at most 16,600 bytes in group 0 {said}"


@pytest.mark.parametrize(
    ("more", "said"),
    [(12, "12.0 ms of it is compute, and the rest less of each"), (15, "most of it is compute")],
)
def test_the_account_that_grew_most_is_most_of_a_long_step_from_half_of_it_on(more: int, said: str) -> None:
    """The last step is 30 ms longer, of which communication has 9 ms."""
    steps = [
        row(10 * n, 10 * n + 10 + 30 * (n == 3), step=n, left_out="outlier" if n == 3 else None)
        for n in range(4)
    ]
    computing = [row(10 * n, 10 * n + 6 + more * (n == 3), family="gemm") for n in range(4)]
    (one,) = found(
        "outlier_steps",
        steps=steps,
        ranks=[{"rank": 0}],
        kernels=computing,
        collectives=[row(48, 57)],
    )
    assert one.claim == f"Step 3 took 40.0 ms, 4.0 times the others; {said}. It is left out of the mean."


def test_a_transfer_that_lasts_in_one_step_alone_is_told_of_no_rank_and_not_to_be_hidden() -> None:
    """Both ranks move data for 30 ms more in step 3: "on rank 1" was told, with advice to send less."""
    each: dict[str, list[dict[str, Any]]] = {"steps": [], "kernels": [], "collectives": []}
    for rank in range(2):
        for n in range(4):
            at, long = 10 * n, 30 * (n == 3)
            left_out = {"step": n, "left_out": "outlier" if long else None, "rank": rank}
            each["steps"].append(row(at, at + 10 + long, **left_out))
            each["kernels"].append(row(at, at + 6, family="gemm", rank=rank))
            moves = row(at + 6, at + 9 + long, rank=rank)
            each["kernels"].append(moves | {"family": "communication", "stream": 9})
            each["collectives"].append(moves | {"kind": "all-reduce", "bytes_in": 8})
    ranks = [{"rank": rank, "world_size": 2, "clock_error": 0} for rank in range(2)]
    (one,) = found("outlier_steps", ranks=ranks, **each)
    assert one.claim.startswith("Step 3 took 40.0 ms, 4.0 times the others; most of it is transfer.")
    assert one.next.startswith(
        "If a group communicates in it for the first time, its connections are made there"
    )
