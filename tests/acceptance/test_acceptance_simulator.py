"""The made-up machine keeps CUDA's rules, and the judge of pages cannot be gamed."""

from __future__ import annotations

from typing import Any

from acceptance.cases import Truth, cases
from acceptance.grading import Page, judged, shown_step
from acceptance.simulator import ARRIVE, BETWEEN, MS, US, WAKE, Machine, Program, Row, Work


def run(*programs: Program) -> list[list[Row]]:
    machine = Machine([program.tape for program in programs])
    machine.run()
    return [rank.rows for rank in machine.ranks]


def steady() -> Program:
    return Program("0", noise=0.0)


def work(us: int, stream: int = 7, **more: Any) -> Work:
    return Work("gemm", us * US, stream, **more)


def device(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row.start, row.end) for row in rows if row.category == "kernel")


def test_a_launch_returns_before_its_kernel_ends_and_a_synchronisation_after() -> None:
    program = steady()
    program.launch(work(50), us=6)
    program.synchronise("cudaDeviceSynchronize", us=2)
    [rows] = run(program)
    begin = 3 * US + ARRIVE
    assert device(rows) == [(begin, begin + 50 * US)]
    host = {row.name: (row.start, row.end) for row in rows if row.category == "cuda_runtime"}
    assert host == {
        "cudaLaunchKernel": (0, 6 * US),
        "cudaDeviceSynchronize": (6 * US, begin + 50 * US + WAKE + 2 * US),
    }


def test_streams_run_side_by_side_unless_an_event_orders_them() -> None:
    program = steady()
    program.launch(work(50))
    program.launch(work(20, stream=20))
    program.record("ready", 7)
    program.wait("ready", 20)
    program.launch(work(30, stream=20))
    [rows] = run(program)
    (start, end), (other, _), (waited, _) = sorted(
        device(rows), key=lambda row: row[1] - row[0] if row[1] - row[0] != 50 * US else 0
    )
    assert other < end
    assert waited == end + BETWEEN
    assert start < other


def test_a_host_that_has_1024_launches_pending_waits_for_the_oldest_to_start() -> None:
    program = steady()
    for _ in range(1200):
        program.launch(work(100), us=5)
    [rows] = run(program)
    calls = [row.end - row.start for row in rows if row.name == "cudaLaunchKernel"]
    assert max(calls[:1024]) == 5 * US
    assert min(calls[1150:]) > 90 * US


def test_a_collective_ends_for_all_after_the_last_has_arrived() -> None:
    late, early = steady(), steady()
    late.work(1000)
    for program in (late, early):
        program.launch(work(200, 20, call="sum", members=2), us=5)
    first, second = run(late, early)
    [(late_start, late_end)], [(early_start, early_end)] = device(first), device(second)
    assert late_start - early_start == MS
    assert late_end - late_start >= 200 * US
    assert abs(late_end - early_end) < US


def test_who_waits_for_a_rank_that_died_is_recorded_until_patience_ends() -> None:
    alive = steady()
    with alive.row("user_annotation", "ProfilerStep#0"):
        alive.launch(work(200, 20, call="sum", members=2), us=5)
        alive.synchronise("cudaDeviceSynchronize")
    [rows, _] = run(alive, steady())
    assert device(rows) == []
    [step] = [row for row in rows if row.name == "ProfilerStep#0"]
    assert not step.finished
    assert step.end > 10_000 * MS


def test_the_same_seed_gives_the_same_jobs_and_another_one_others() -> None:
    assert [case.job for case in cases(1)] == [case.job for case in cases(1)]
    assert [case.job for case in cases(1)] != [case.job for case in cases(2)]
    assert len(list(cases(0))) >= 2 * (14 + 6)


def page(*findings: dict[str, Any]) -> Page:
    return Page({"findings": list(findings)}, "step   40.0 ms  100.0 %  mean of 5 steps on 1 rank")


def found(name: str, claim: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "claim": claim, "ns_per_step": 9 * MS, **more}


TRUTH = Truth("rank 2's loader", "late|load", (r"\brank 2\b", "load"), rank=2)


def named(finding: dict[str, Any]) -> bool | None:
    return judged(page(finding), TRUTH, 40.0 * MS, None).named


def test_a_finding_names_a_cause_by_its_own_words_in_any_order() -> None:
    assert named(found("rank-late", "Rank 2 is 9 ms late: its loader."))
    assert named(found("input", "Loading takes 9 ms.", contributors=["rank 2: `next_batch` 9 ms"]))


def test_another_rank_or_another_cause_is_a_miss() -> None:
    assert not named(found("rank-late", "Rank 1 is 9 ms late: its loader."))
    assert not named(found("rank-late", "Rank 2 is 9 ms late: its garbage collector."))
    assert not named(found("rank-late", "Rank 2 is late: its loader.", rank=1))
    assert not named(found("rank-late", "Rank 21 is 9 ms late: its loader."))


def test_only_the_first_finding_counts() -> None:
    right = found("rank-late", "Rank 2 is 9 ms late: its loader.")
    wrong = found("communication-exposed", "9 ms of communication.")
    assert not judged(page(wrong, right), TRUTH, 40.0 * MS, None).named
    assert judged(page(), TRUTH, 40.0 * MS, None).named is False


def test_a_healthy_run_may_only_whisper_or_tell_of_its_oddity() -> None:
    calm = Truth("healthy", quiet=True, pardoned=r"step 12\b")
    loud = found("launch-bound", "Launches cost 9 ms.")
    assert judged(page(), calm, 40.0 * MS, None).quiet
    assert not judged(page(loud), calm, 40.0 * MS, None).quiet
    assert judged(page({**loud, "ns_per_step": 1 * MS}), calm, 40.0 * MS, None).quiet
    assert judged(page({**loud, "claim": "Step 12 took 240 ms."}), calm, 40.0 * MS, None).quiet
    # A finding whose gain is unknown still says how much it is about.
    unknown = found("idle", "The GPU idles 9.0 ms per step.") | {"ns_per_step": 0}
    assert not judged(page(unknown), calm, 40.0 * MS, None).quiet


def test_the_step_is_read_from_the_ledger_and_may_be_3_per_cent_off() -> None:
    assert shown_step(page()) == 40.0 * MS
    assert judged(page(), Truth("", quiet=True), 41.1 * MS, None).step_right
    assert not judged(page(), Truth("", quiet=True), 41.5 * MS, None).step_right
