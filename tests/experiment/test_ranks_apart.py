"""A comparison names the ranks whose own work changed, though all steps are equally long."""

from __future__ import annotations

from pathlib import Path

import lostflops
from lostflops.experiment.difference.links_apart import LinkApart
from lostflops.experiment.difference.ranks_apart import RanksApart, ranks_apart
from made_runs import MS, Job, Work, made


def ranks(*computes: int, step: int = 100) -> dict[int, dict[str, int]]:
    """Ranks that wait for the slowest, in steps of one length."""
    return {
        rank: {"compute": ns, "communication.wait": step - ns}
        for rank, ns in enumerate(computes)
        if ns <= step
    }


def test_the_rank_that_became_slow_is_named_though_all_steps_are_longer() -> None:
    before, after = ranks(90, 90, 90, 90), ranks(90, 90, 140, 90, step=150)
    found = ranks_apart(before, after, 100, 50)
    assert found == RanksApart((2,), "compute", 50, 0, 50)
    back = ranks_apart(after, before, 150, -50)
    assert back == RanksApart((2,), "compute", -50, 0, -50)


def test_of_two_ranks_the_one_that_changed_is_named() -> None:
    for computes in ((140, 90), (90, 140)):
        found = ranks_apart(ranks(90, 90), ranks(*computes, step=150), 100, 50)
        assert found == RanksApart((computes.index(140),), "compute", 50, 0, 50)


def test_several_ranks_are_named_together_and_half_of_them_at_most() -> None:
    before = ranks(90, 90, 90, 90)
    found = ranks_apart(before, ranks(90, 140, 90, 130, step=150), 100, 50)
    assert found == RanksApart((1, 3), "compute", 45, 0, 50)
    assert ranks_apart(before, ranks(90, 140, 140, 140, step=150), 100, 50) is None, "all but one changed"


def test_what_all_ranks_change_alike_or_by_little_or_in_waiting_alone_is_no_rank_apart() -> None:
    before = ranks(90, 90, 90, 90)
    assert ranks_apart(before, ranks(140, 140, 140, 140, step=150), 100, 50) is None
    assert ranks_apart(before, ranks(90, 90, 90, 90, step=150), 100, 50) is None  # a slow link
    assert ranks_apart(before, ranks(90, 90, 94, 90, step=150), 100, 50) is None  # less than a tenth of it
    assert ranks_apart(before, ranks(90, 90, 96, 90, step=150), 100, 50) is not None
    assert ranks_apart({0: {"compute": 9}}, {0: {"compute": 18}}, 10, 9) is None
    assert ranks_apart({}, {}, 0, 0) is None


def test_what_moved_from_one_rank_to_another_is_told_of_both() -> None:
    before, after = ranks(90, 140, 90, 90, step=150), ranks(90, 90, 138, 90, step=150)
    found = ranks_apart(before, after, 150, 0)
    assert found == RanksApart((1,), "compute", -50, 0, 0, (2,), 48)


def test_means_over_other_numbers_of_ranks_are_called_so_and_what_is_known_is_not_unknown(
    tmp_path: Path,
) -> None:
    """Nobody waits in the first job, all of which is here; of the second two of four ranks are."""
    four = made(tmp_path / "4", Job().run([[Work()] * 4] * 2))
    two = made(tmp_path / "2", Job(world_size=4).run([[Work(), Work()]] * 2))
    found = lostflops.diff(four, two)
    assert {differs.name: (differs.before, differs.after) for differs in found.mismatches} == {
        "ranks that are here": ("all", "2 of 4"),
        "waiting for other ranks": ("known", "not known"),
    }
    assert "Each account is the mean over 4 ranks before and 2 after: " in " ".join(found.notes)


def test_two_ranks_that_changed_each_in_its_own_account_are_both_told() -> None:
    """Rank 1 loads 40 longer, rank 3 computes 50 longer: ranks 0 and 2 wait 50, and no other does."""
    before = {rank: {"compute": 90, "communication.wait": 10} for rank in range(4)}
    after = {
        0: {"compute": 90, "communication.wait": 60},
        1: {"compute": 90, "idle.data_loading": 40, "communication.wait": 20},
        2: {"compute": 90, "communication.wait": 60},
        3: {"compute": 140, "communication.wait": 10},
    }
    loading = RanksApart((1,), "idle.data_loading", 40, 0, 50)
    assert ranks_apart(before, after, 100, 50) == RanksApart((3,), "compute", 50, 0, 50, also=(loading,))


def test_the_page_tells_both_and_what_the_others_wait_for_them(tmp_path: Path) -> None:
    calm = made(tmp_path / "calm", Job().run([[Work()] * 4] * 3))
    slow = [Work(), Work(loads=30), Work(), Work(computes=80)]
    found = lostflops.diff(calm, made(tmp_path / "slow", Job().run([slow] * 3)))
    assert (
        "What changed is rank 3: +40.0 ms of compute per step, 0 ns on the rank in the middle; and rank 1: "
        "+30.0 ms of data loading per step, 0 ns on the rank in the middle. The others communicate and wait "
        "40.0 ms more."
    ) in found.notes


def test_a_link_that_changed_for_all_ranks_is_told_beside_the_rank_that_became_slow(tmp_path: Path) -> None:
    """The transfer takes 30 less on each rank; rank 2 computes 30 more, and the others wait for that."""
    slow_link = made(tmp_path / "link", Job(transfer=35).run([[Work()] * 4] * 3))
    slow_rank = [Work(), Work(), Work(computes=70), Work()]
    found = lostflops.diff(slow_link, made(tmp_path / "rank", Job(transfer=5).run([slow_rank] * 3)))
    assert (
        "What changed is rank 2: +30.0 ms of compute per step, 0 ns on the rank in the middle; and the "
        "transfer on every rank: −30.0 ms on average. The others wait 30.0 ms more."
    ) in found.notes


def test_a_link_that_changed_beside_a_rank_is_told_in_one_sentence_the_larger_first(tmp_path: Path) -> None:
    calm = made(tmp_path / "calm", Job().run([[Work()] * 4] * 3))
    slow = made(tmp_path / "slow", Job().run([[Work(), Work(), Work(), Work(computes=80)]] * 3))
    rank = "rank 3: +40.0 ms of compute per step, 0 ns on the rank in the middle"
    over = (
        "transfer among ranks 0, 1: one all-reduce of 1 MB takes 30.0 ms, before 10.0 ms (among other ranks "
        "it takes 10.0 ms, before 10.0 ms)"
    )
    for cost, changed in ((7, f"{rank}; and {over}"), (70, f"{over}; and {rank}")):
        found = lostflops.diff(calm, slow)
        found.__dict__["link"] = LinkApart(
            "0, 1", "all-reduce", 10**6, *(ms * MS for ms in (10, 30, 10, 10)), cost_ns=cost * MS
        )
        said = f"What changed is {changed}. The others communicate and wait 40.0 ms more."
        assert [note for note in found.notes if note.startswith("What changed is")] == [said]


def test_ranks_that_are_slow_in_turn_are_none_that_changed(tmp_path: Path) -> None:
    """In each step another rank has the longest sequence: twice it is rank 2, by chance."""
    calm = made(tmp_path / "calm", Job().run([[Work()] * 4] * 5))
    turns = [[Work(computes=80 if rank == slow else 40) for rank in range(4)] for slow in (1, 2, 0, 2, 3)]
    found = lostflops.diff(calm, made(tmp_path / "turns", Job().run(turns)))
    assert found.apart is None
    lasting = [[Work(computes=80 if rank == 2 and step else 40) for rank in range(4)] for step in range(5)]
    found = lostflops.diff(calm, made(tmp_path / "lasting", Job().run(lasting)))
    assert found.apart is not None, "the others do not scatter"
    assert found.apart.ranks == (2,)
