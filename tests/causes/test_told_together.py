"""Ranks that are late together, from ledgers of a few rows: numbers that were worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from by_hand import DATA, LAUNCHES, MS, PYTHON, Rows, finding, given
from lostflops.causes.between_ranks.advice import AS_MANY, SLOW_HOSTS, ZIGZAG
from lostflops.causes.between_ranks.several import (
    bound_of,
    for_several,
    is_one_of_many,
    told_together,
    uneven,
    unexplained,
    waiting_for,
)
from lostflops.causes.one_rank.late import Excess, Late
from lostflops.causes.own_time.together import late_together
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding

WAIT, TRANSFER = "communication.wait", "communication.transfer"
SYNC, SAVING = "idle.host_synchronisation", "idle.checkpoint_logging"
EVEN_OUT = (
    "Even out the work: sequences of like length per rank (length grouping, packing), stages of one cost."
)
Work = list[tuple[int, str, str, int, int]]


def spending(*ranks: dict[str, int], steps: int = 2) -> Rows:
    """What each rank spends in each step, by account."""
    return [
        (rank, step, account, ns)
        for rank, accounts in enumerate(ranks)
        for step in range(steps)
        for account, ns in accounts.items()
    ]


def knowing(rows: Rows, *findings: Finding, work: Sequence[Any] = (), **more: Any) -> PageFindings:
    """A page of findings that knows this; tables by the names of their recipes."""
    tables = {name: more.pop(name) for name in ("communication_wait", "stragglers") if name in more}
    page = PageFindings(replace(given(rows, work, **tables), **more))
    for one in findings:
        page.put(one)
    return page


def pairs(ns: int) -> pl.DataFrame:
    return pl.DataFrame({"rank": [0, 1], "in_pairs": [ns, 0]})


def in_stages(*stages: int) -> pl.DataFrame:
    kinds = {"part": pl.String, "rank": pl.Int64, "name": pl.String, "stage": pl.Int64, "own": pl.Int64,
             "even": pl.Int64, "removal": pl.Float64, "steps": pl.Int64}  # fmt: skip
    rows = [{"part": "rank", "rank": rank, "stage": stage} for rank, stage in enumerate(stages)]
    return pl.DataFrame([dict.fromkeys(kinds) | row for row in rows], kinds)


def replayed(own: int, even: int) -> pl.DataFrame:
    return in_stages().vstack(
        pl.DataFrame([dict.fromkeys(in_stages().columns)
                      | {"part": "job", "own": own, "even": even, "steps": 2}], in_stages().schema)
    )  # fmt: skip


def two_of_five(more: int, whole: int = 10_000, account: str = "compute") -> Rows:
    """Ranks 1 and 4 of five have so much more of their own in steps of one length; the others transfer."""
    late: dict[str, int] = {}
    for name, ns in (("compute", whole - more), (account, more)):
        late[name] = late.get(name, 0) + ns
    other = {"compute": whole - more, TRANSFER: more}
    return spending(other, late, other, other, late)


def late(ns: int, rank: int = 1) -> Late:
    return Late(rank, ns, ns, Excess(rank, {"compute": ns}, (), ns), None, 2, 0, False, {})


# Stages of two ranks, of which the second is on its own in the last: ranks 1 and 4 are not of one.
STAGED: dict[str, Any] = {"communication_wait": pairs(1), "stragglers": in_stages(0, 0, 1, 1, 2)}


def one_of_many(of: Late, alone: int, both: int = 10, rows: Rows | None = None, **more: Any) -> bool:
    gains = {f"even-ranks:{of.rank}": alone, "even-ranks:1+4": both}
    page = knowing(two_of_five(30) if rows is None else rows, gained=gains.__getitem__, **more)
    return is_one_of_many(of, page.given)


def test_a_rank_is_one_of_many_where_it_alone_gains_less_than_half_of_what_all_do() -> None:
    assert one_of_many(late(15), alone=4) is True
    assert one_of_many(late(15), alone=5) is False
    assert one_of_many(late(14), alone=10) is True  # it leads the next by less than half of 30
    assert one_of_many(late(15), alone=10) is False


def test_stages_have_each_a_share_of_what_all_gain() -> None:
    assert one_of_many(late(14), alone=7, **STAGED) is True
    assert one_of_many(late(14), alone=8, **STAGED) is False


def test_a_rank_that_is_late_by_itself_is_not_one_of_many() -> None:
    assert one_of_many(late(14, rank=2), alone=0) is False
    assert one_of_many(late(14), alone=0, rows=spending(*[{"compute": 100}] * 5)) is False


def test_a_rank_with_a_cause_of_its_own_is_one_of_many_by_its_lead_alone() -> None:
    other = {"compute": 70, TRANSFER: 30}
    apart = spending(other, {"compute": 100}, other, other, {"compute": 70, DATA: 30})
    assert one_of_many(late(14), alone=0, rows=apart) is True
    assert one_of_many(late(15), alone=0, rows=apart) is False


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ((0, 0, 1, 1, 2), True),
        ((0, 1, 0, 0, 1), False),  # they are a stage, which has more layers
        ((0, 1, 1, 0, 1), False),  # or two of three of one
        ((), False),
    ],
)
def test_ranks_of_one_stage_are_not_told_as_late(stages: tuple[int, ...], told: bool) -> None:
    known: dict[str, Any] = {**STAGED, "stragglers": in_stages(*stages)}
    assert one_of_many(late(14), alone=0, **known) is told
    page = knowing(two_of_five(1000), gained=lambda _: 5000, **known)
    assert for_several(page, 0, None) == (0, 0) and bool([*page.all()]) is told


def several(more: int, waited: int = 0, gain: int = 5000, rows: Rows | None = None, **of: Any) -> Any:
    gains = {"even-ranks:1+4": gain}
    page = knowing(rows or two_of_five(more), gained=gains.__getitem__, **of)
    told = for_several(page, waited, None)
    assert bool([*page.all()]) is (told != (0, 0))
    return told


def test_ranks_are_late_together_from_a_hundredth_of_the_step_on() -> None:
    assert several(100) == (0, 3000)  # three of five ranks gain 5000
    assert several(99) == (0, 0)
    assert several(1000, gain=100) == (0, 60)
    assert several(1000, gain=99) == (0, 0)
    assert several(0) == (0, 0)


def test_ranks_that_are_late_together_explain_half_of_what_is_waited() -> None:
    """1000 of each of three others, of 1200 of each of all five."""
    assert several(1000, waited=1200) == (1200, 1800)
    assert several(1000, waited=1201) == (0, 0)


def test_a_replay_gains_surely_more_than_the_others_wait() -> None:
    """Of five ranks that wait 1200 each, three wait 2000."""
    assert several(1000, waited=1200, gain=2200) == (1200, 120)
    assert several(1000, waited=1200, gain=2199) == (0, 0)
    assert several(1000, waited=300, gain=600) == (300, 60)
    assert several(1000, waited=300, gain=599) == (0, 0)


def test_no_transfer_begins_late_where_all_that_a_replay_gains_is_waited() -> None:
    other = {"compute": 9000, WAIT: 100, TRANSFER: 900}
    rows = spending(other, {"compute": 10_000}, other, other, {"compute": 10_000})
    assert several(1000, waited=1200, gain=300, rows=rows) == (1200, 0)


def test_stages_wait_for_late_ranks_what_they_do_not_wait_in_sends_and_receives() -> None:
    def staged(gain: int, in_pairs: int) -> Any:
        """`in_pairs` of each of ten steps."""
        return several(1000, 1000, gain, **{**STAGED, "communication_wait": pairs(10 * in_pairs)})

    assert staged(5000, 300) == (1000, 0)  # 3000 are more than is waited
    assert staged(500, 300) == (700, 0)
    assert staged(500, 900) == (300, 0)
    assert staged(100, 900) == (100, 0)
    assert staged(99, 900) == (0, 0)  # a hundredth of the step, whatever is waited


# What kernels tell: ranks 2 and 3 of four are slower.
def works(*calls: int, kernels: Sequence[str] = "aaaa", times: Sequence[int] = (100, 100, 200, 200)) -> Work:
    many = calls or (6, 6, 6, 6)
    return [(r, "gemm", kernel, many[r], times[r]) for r, kernel in enumerate(kernels)]


def two_of_four(account: str = "compute", waits: int = 4, moves: int = 6) -> Rows:
    """Ranks 2 and 3 of four have 10 ms more of an account, of steps of 100 ms."""
    late: dict[str, int] = {"compute": 90 * MS}
    late[account] = late.get(account, 0) + 10 * MS
    other = {"compute": 90 * MS, WAIT: waits * MS, TRANSFER: moves * MS}
    return spending(other, other, late, late)


def told(
    rows: Rows,
    *findings: Finding,
    waited: int = 2 * MS,
    longer: int = 0,
    waits: Finding | None = None,
    told_of: int | None = None,
    **known: Any,
) -> Finding:
    page = knowing(rows, *findings, **known)
    group = late_together(page.given)
    assert group is not None
    told_together(page, group, waited, waits, *([longer] if longer else []), told_of=told_of)
    (found,) = page.all()
    return found


def test_ranks_that_compute_longer_on_a_slow_device() -> None:
    found = told(two_of_four(), work=works())
    assert found.claim == (
        "The others wait 4.00 ms per step (4.0 %) for ranks 2 and 3, which compute 10.0 ms longer than the "
        "others in nearly every step."
    )
    assert found.evidence == ("rank 2: its gemm kernels take 2 times as long as the same kernels there",)
    assert found.next.startswith("On ranks 2 and 3: look at GPU clocks, heat and power")
    assert (found.edit, found.accounts) == ("even-ranks:2+3", (WAIT, "compute"))
    assert (found.size, found.ns_per_step, found.gain) == (4 * MS, 10 * MS, "at most")
    assert (found.name, found.recipe) == ("communication-waits", "communication_wait")
    assert (found.doubt, found.remedies) == ("", ())
    asked = told(two_of_four(), work=works(), left=tuple)
    assert asked.remedies == ("rank-exclusion",)


def test_ranks_on_another_gpu_are_compared_with_those_that_are_not_late() -> None:
    gpus = dict(enumerate(("H100", "H100", "A100", "A100")))
    found = told(two_of_four(), work=works(), gpus=gpus)
    assert found.evidence == ("rank 2: it runs on A100, the others on H100",)
    five = spending(*({"compute": 60, WAIT: 40} if r < 3 else {"compute": 100} for r in range(6)))
    gpus = {rank: "H100" if rank < 3 else "A100" for rank in range(6)}
    work = [(r, "gemm", "a", 6, 100 if r < 3 else 200) for r in range(6)]
    found = told(five, waited=20, work=work, gpus=gpus)
    assert found.evidence == ("rank 3: it runs on A100, the others on H100",)


def test_experts_are_nothing_to_even_out_on_a_slow_device() -> None:
    found = told(two_of_four(), work=works(), purposes={"experts": 5})
    assert "experts" not in found.next and found.edit == "even-ranks:2+3"


def test_ranks_that_have_more_to_do_share_their_work_evenly() -> None:
    """Rank 2 runs other kernels. Two of four ranks wait or transfer for 10 ms: 5 ms in the mean."""
    found = told(two_of_four(), work=works(kernels="aabb"))
    assert found.evidence == (
        "rank 2: it runs other or larger kernels than they do: it has more work, such as longer sequences",
    )
    assert (found.next, found.edit) == (EVEN_OUT, "even-work")
    assert (found.size, found.ns_per_step) == (4 * MS, 5 * MS)
    table = replayed(100 * MS, 95 * MS)
    replay = "replayed with all work spread evenly over ranks a step takes 95.0 ms instead of 100 ms"
    node: dict[str, Any] = {"hosts": dict(enumerate((0, 0, 1, 1)))}
    found = told(two_of_four(), work=works(kernels="aabb"), stragglers=table, **node)
    assert found.evidence[1:] == (replay, "they are all ranks of one node")
    # Where a replay predicts what even work gains, there is no second number for it.
    node |= {"gained": lambda edit: 5 * MS if edit == "even-work" else 0}
    found = told(two_of_four(), work=works(kernels="aabb"), stragglers=table, **node)
    assert found.evidence[1:] == ("they are all ranks of one node",)
    asked = told(two_of_four(), work=works(kernels="aabb"), left=tuple)
    assert asked.remedies == ("length-grouping", "packing")


def test_the_first_of_the_ranks_tells_whether_they_have_parts_of_their_own() -> None:
    """Rank 2 launches twice as many kernels as the others, and rank 3 as many."""
    table = replayed(100 * MS, 95 * MS)
    found = told(two_of_four(), work=works(6, 6, 12, 6, kernels="aabb"), stragglers=table)
    assert found.evidence == ("rank 2: it runs 2 times as many kernels per step",)  # which no replay evens
    assert (found.next, found.remedies) == (AS_MANY, ())
    found = told(two_of_four(), work=works(6, 6, 6, 12, kernels="aabb"), stragglers=table)
    assert found.next == EVEN_OUT and len(found.evidence) == 2
    staged = told(two_of_four(), work=works(6, 6, 12, 6, kernels="aabb"), communication_wait=pairs(1))
    assert staged.next == EVEN_OUT  # of stages, each has a part of its own


def test_ranks_of_which_no_kernel_tells_why_they_compute_longer() -> None:
    found = told(two_of_four())
    assert (found.evidence, found.next, found.edit) == ((), EVEN_OUT, "even-ranks:2+3")


def test_on_a_cpu_processes_that_compute_longer_get_cores_of_their_own() -> None:
    found = told(two_of_four(), on_host=True)
    assert found.next.startswith("On ranks 2 and 3: give each process cores of its own")


def test_the_later_ranks_of_rings_have_later_parts_of_sequences() -> None:
    """Two rings of two: attention takes 5 ms on the first of each, in two steps, and 15 ms on the second."""
    other = {"compute": 90 * MS, TRANSFER: 10 * MS}
    late = {"compute": 100 * MS}
    work = [(r, "attention", "f", 2, (10 + 20 * (r % 2)) * MS) for r in range(4)]
    work += [(r, "gemm", "a", 2, 160 * MS) for r in range(4)]
    found = told(spending(other, late, other, late), work=work, purposes={"ring": 1})
    assert found.evidence == (
        (
            "rank 1: attention takes 5.00 ms per step on rank 0 and 15.0 ms on rank 1, more on each rank of "
            "the ring than on the one before: it is causal, and each has one part of a sequence"
        ),
    )
    assert (found.next, found.edit) == (ZIGZAG, "even-work")


def test_slow_cpus_are_looked_at_where_they_launch_no_more_than_the_others() -> None:
    found = told(two_of_four(LAUNCHES), work=works(6, 6, 6, 12))
    assert found.claim.endswith("for ranks 2 and 3, which have 10.0 ms more of launching than the others in "
                                "nearly every step.")  # fmt: skip
    assert found.next == f"On ranks 2 and 3: f{SLOW_HOSTS[1:]}"
    assert (found.edit, found.evidence, found.remedies) == ("even-ranks:2+3", (), ())
    more = told(two_of_four(LAUNCHES), work=works(6, 6, 12, 6))
    assert more.next.startswith("On ranks 2 and 3: ") and "CPUs" not in more.next


def test_other_accounts_are_told_with_what_is_done_about_them() -> None:
    found = told(two_of_four(DATA), work=works(), left=tuple)
    assert "have 10.0 ms more of data loading than the others" in found.claim
    assert found.next.startswith("On ranks 2 and 3: give the loader worker processes")
    assert found.accounts == (WAIT, DATA) and "workers" in found.remedies[0]
    assert "have 10.0 ms more of graph capture than" in told(two_of_four("idle.graph_capture")).claim


def test_on_a_cpu_the_advice_is_that_for_cpus() -> None:
    on_gpu, on_host = (told(two_of_four(SYNC), on_host=host, left=tuple) for host in (False, True))
    assert on_gpu.next.startswith("On ranks 2 and 3: move `.item()`, `.cpu()` and prints of GPU values")
    assert on_host.next.startswith("On ranks 2 and 3: communicate in fewer and larger calls")
    assert on_gpu.remedies and on_host.remedies == ()


def test_a_slow_node_is_told_where_all_of_its_ranks_and_no_others_are_late() -> None:
    def evidence(*hosts: int) -> tuple[str, ...]:
        return told(two_of_four(), hosts=dict(enumerate(hosts))).evidence

    one_node = ("they are all ranks of one node",)
    assert evidence(0, 0, 1, 1) == evidence(0, 2, 1, 1) == one_node
    assert evidence(0, 0, 0, 0) == evidence(0, 1, 1, 1) == evidence(0, 0, 1, 2) == evidence() == ()
    assert told(two_of_four(), hosts={0: 0, 1: 0, 2: 1}).evidence == ()  # nobody knows where rank 3 is


def test_what_ranks_make_a_step_longer_by_is_told_where_that_is_more_than_others_wait() -> None:
    """Others wait for 4 ms, and their transfers begin later: a step is 8 ms longer."""
    found = told(two_of_four(), longer=8 * MS)
    assert found.claim == (
        "Ranks 2 and 3 make a step 8.00 ms longer (8.0 %): they compute 10.0 ms longer than the others in "
        "nearly every step; the others wait 4.00 ms for them."
    )
    assert (found.size, found.ns_per_step) == (8 * MS, 10 * MS)
    assert told(two_of_four(), waited=500_000, longer=8 * MS).claim.endswith(
        "step; the others wait 1.00 ms for them."
    )
    assert told(two_of_four(), waited=499_999, longer=8 * MS).claim.endswith("in nearly every step.")


def test_the_others_wait_no_longer_than_their_waits_last() -> None:
    """Two of four ranks wait what all four do: twice that each."""
    assert told(two_of_four(waits=4), waited=1 * MS).size == 2 * MS
    assert told(two_of_four(waits=4), waited=5 * MS).size == 4 * MS
    assert told(two_of_four(waits=0), waited=5 * MS).size == 10 * MS  # of which the ledger knows nothing
    other = {"compute": 90 * MS, WAIT: 7 * MS, TRANSFER: 3 * MS}
    late = {"compute": 100 * MS, WAIT: 2 * MS}
    assert told(spending(other, other, late, late, steps=3), waited=50 * MS).size == 7 * MS
    five = {"compute": 90, WAIT: 4, TRANSFER: 6}, {"compute": 100}
    assert (
        told(spending(five[0], five[1], five[0], five[0], five[1]), waited=3).size == 4
    )  # fifteen thirds are 5


WAITS = finding("communication-waits", WAIT, 12, evidence=("a", "b", "c"), doubt="Perhaps.", recipe="x")


def test_what_is_known_of_waits_as_such_is_told_beside_it() -> None:
    found = told(two_of_four(), work=works(), waits=WAITS)
    assert found.ns_per_step == 12 * MS and found.doubt == "Perhaps."
    assert found.evidence[1:] == ("b",)
    assert told(two_of_four(moves=16), waits=WAITS).ns_per_step == 12 * MS
    assert (bound_of(WAITS), bound_of(None)) == (12 * MS, 0)


def test_late_ranks_are_part_of_what_is_told_of_their_account() -> None:
    """Ranks 1 and 4 of five load data 10 ms longer than the others."""
    loading = finding("data", DATA, 20, "The GPU idles 20.0 ms per step (20.0 %) for data.", evidence=("e",))
    rows = two_of_five(10 * MS, 100 * MS, DATA)
    found = told(rows, loading, waited=6 * MS)
    assert found.claim == "The GPU loses 26.0 ms per step (26.0 %) for data."
    assert (found.size, found.ns_per_step, found.accounts) == (26 * MS, 26 * MS, (DATA, WAIT))
    fact = "ranks 1 and 4 have 10.0 ms more of it than the others in nearly every step: "
    assert found.evidence == (f"{fact}ranks wait 6.00 ms per step for them", "e")
    # A mean rank of five waits three fifths of what the three others lose.
    longer = told(rows, loading, waited=4 * MS, longer=9 * MS)
    assert longer.size == 25_400_000
    assert longer.evidence[0] == f"{fact}they make a step 9.00 ms longer"
    assert told(rows, loading, waited=6 * MS, longer=9 * MS).size == 26 * MS
    wide = finding("communication-waits", WAIT, 70)
    assert told(rows, loading, waited=6 * MS, waits=wide).ns_per_step == 70 * MS


def apart(*accounts: str) -> Rows:
    """The last ranks of a job have each 10 ms more of an account of its own than five others."""
    other = {"compute": 80 * MS, WAIT: 8 * MS, TRANSFER: 2 * MS}
    late: list[dict[str, int]] = []
    for account in accounts:
        late.append({"compute": 80 * MS})
        late[-1][account] = late[-1].get(account, 0) + 10 * MS
    return spending(*[other] * 5, *late)


def test_ranks_that_are_late_for_causes_of_their_own_are_told_with_each() -> None:
    work = [(rank, "gemm", "b" if rank == 6 else "a", 6, 100) for rank in range(8)]
    found = told(apart(DATA, "compute", SAVING), waited=4 * MS, left=tuple, work=work)
    assert found.claim == (
        "The others wait 6.40 ms per step (7.1 %) for ranks 5, 6 and 7, which have more of their own to do "
        "in nearly every step: rank 5 has 10.0 ms of data loading, rank 6 has 10.0 ms more computing and "
        "rank 7 has 10.0 ms of checkpoints or logging."
    )
    loading, saving = found.next.split(f" {EVEN_OUT} ")
    assert loading.startswith("On rank 5: give the loader") and saving.startswith("On rank 7: ")
    assert (found.edit, found.accounts, found.remedies) == ("even-ranks:5+6+7", (WAIT, DATA), ())
    assert found.evidence == (
        "as long as one of them is late, ranks wait for that one: all of them have to change",
    )
    assert (found.size, found.ns_per_step) == (6_400_000, 10 * MS)


def test_a_rank_late_beside_one_that_is_told_already_is_told_alone() -> None:
    rows = apart(DATA, SAVING)
    found = told(rows, waited=4 * MS, told_of=5)
    assert found.claim == (
        "The others wait 5.60 ms per step (6.2 %) for rank 6, which has 10.0 ms of checkpoints or logging in "
        "nearly every step."
    )
    assert (found.edit, found.accounts) == ("even-ranks:6", (WAIT, SAVING))
    assert found.evidence == ("as long as rank 5 is late, ranks wait for that one: it has to change, too",)
    # Stages pass lateness on, so that each gains by itself.
    assert told(rows, waited=4 * MS, told_of=5, communication_wait=pairs(1)).evidence == ()


def test_three_ranks_with_causes_of_their_own_are_told_and_no_fourth() -> None:
    found = told(apart(DATA, "compute", SAVING, "copy"), waited=4 * MS)
    assert "rank 7 has" in found.claim and "rank 8 has" not in found.claim
    assert "On rank 7: " in found.next and "On rank 8: " not in found.next


def test_a_finding_that_is_nearly_all_of_one_late_rank_is_told_with_that_rank() -> None:
    """10 ms on one of eight ranks are 1.25 ms in the mean: four fifths of 1.5625."""
    for ns, dropped in ((1_562_500, True), (1_562_501, False)):
        loading, waits = replace(finding("data", DATA, 1), ns_per_step=ns), finding("other", SYNC, 1)
        page = knowing(apart(DATA, SAVING, PYTHON), loading, waits)
        group = late_together(page.given)
        assert group is not None
        told_together(page, group, 4 * MS, None)
        names = [found.name for found in page.all()]
        assert names == [*([] if dropped else ["data"]), "other", "communication-waits"]


def even(found: Finding, rank: int, **known: Any) -> Finding:
    rows = spending({"compute": 60, WAIT: 40}, {"compute": 100}, steps=1)
    return uneven(found, rank, "it does", knowing(rows, **known).given)


def test_work_that_is_shared_evenly_gains_what_is_waited_in_the_mean() -> None:
    base = Finding("n", "c", "at most", ("e",), "x", ns_per_step=500, cost_per_step=10)
    found = even(base, 1)
    assert (found.ns_per_step, found.size, found.edit) == (20, 10, "even-work")
    assert even(replace(base, cost_per_step=21), 1).ns_per_step == 21
    assert found.evidence == ("rank 1: it does", "e")


def test_waiting_for_several_has_no_share_of_nothing() -> None:
    def waiting(waited: int, at_most: int, waits: Finding | None = None) -> Finding:
        return waiting_for(
            waited, waits, at_most=at_most, claim="c", evidence=("e",), remedy="r", named=("n",), account=DATA
        )

    assert waiting(0, 0).ns_per_step == 0
    assert (waiting(5, 3).ns_per_step, waiting(3, 5).ns_per_step) == (5, 5)
    assert (waiting(3, 5).size, waiting(3, 5).doubt, waiting(3, 5).evidence) == (3, "", ("e",))
    assert waiting(5, 3, WAITS).evidence == ("e", "b") and waiting(5, 3, WAITS).doubt == "Perhaps."
    assert waiting(5, 3, WAITS).ns_per_step == 12 * MS


def test_waiting_that_nobody_explains_is_told_as_that() -> None:
    page = knowing(two_of_four(), first_waits=13 * MS)
    found = unexplained(page, WAITS, 3 * MS)
    assert (
        found.claim == "Ranks wait 3.00 ms per step (3.0 %) for each other; none of them is late as a rule."
    )
    assert (found.size, found.ns_per_step, found.accounts) == (3 * MS, 13 * MS, (WAIT,))
    assert found.doubt == "Perhaps. The ranks' own work does not explain the waiting."
    less = knowing(two_of_four(), first_waits=11 * MS)
    assert unexplained(less, replace(WAITS, doubt=""), 3 * MS).ns_per_step == 12 * MS
    assert unexplained(less, replace(WAITS, doubt=""), 1).doubt.startswith("The ranks' own")


def test_of_accounts_that_ranks_have_as_much_more_of_the_last_by_name_is_theirs() -> None:
    """Rank 2 loads data for 40 ms and runs Python for 25; rank 3 for 10 and 25: 50 of both in all."""
    other = {"compute": 100}
    rows = spending(
        other, other, {"compute": 100, DATA: 40, PYTHON: 25}, {"compute": 100, DATA: 10, PYTHON: 25}
    )
    group = late_together(knowing(rows).given)
    assert group is not None
    assert (group.ranks, group.more, group.account, group.main) == ((2, 3), 35, PYTHON, 25)


def test_ranks_without_more_of_any_account_are_not_told() -> None:
    """Others have two of three accounts, 10 each: 10 at the median of each, and 20 in all. Late ones have 24
    or more, and so not more of any account."""
    parts = ("compute", DATA, PYTHON)
    others = [{name: 10 for name in parts if name != lacking} for lacking in parts]

    def account(*late: tuple[int, int, int]) -> str | None:
        rows = spending(*others, *(dict(zip(parts, each, strict=True)) for each in late))
        group = late_together(knowing(rows).given)
        return group and group.account

    assert account((8, 8, 8), (8, 8, 8)) is None
    assert account((8, 8, 10), (8, 8, 10)) is None
    assert account((8, 8, 11), (8, 8, 11)) == PYTHON
    assert account((8, 8, 9), (8, 8, 12)) is None
