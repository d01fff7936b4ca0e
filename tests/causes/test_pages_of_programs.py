"""Pages of small programs whose truth follows from what was planted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lostflops
from lostflops.report.first_page.page import Page
from programs import GEMM, MS, US, Group, Machine, Step, Work, recorded, thread_beside

ALL = Group("0", (0, 1, 2, 3))


def train(step: Step, layers: int = 8, us: float = 200) -> None:
    for _ in range(layers):
        step.forward(us)
    with step.backward():
        for _ in range(layers):
            step.back(us)


def data_parallel(step: Step, number: int, late: int | None = None, us: float = 300) -> None:
    step.loads(12.3 if step.rank == late else 0.3)
    for _ in range(8):
        step.forward(150)
    with step.backward():
        done = ""
        for layer in range(8):
            step.back(150)
            if layer % 2:
                done = step.sends("all-reduce", ALL, us, waits=False)
        step.p.wait(done, 7)
    step.updates()
    step.reads()


@pytest.mark.parametrize("since", [{}, {1: 4}])
def test_ranks_that_were_recorded_for_fewer_steps_take_nothing_off_a_prediction(
    tmp_path: Path, since: dict[int, int]
) -> None:
    """Rank 2 loads 12 ms longer than the others: like them it makes each step 12 ms shorter."""
    late = recorded(tmp_path / "late", lambda s, n: data_parallel(s, n, late=2), 4, 6, since=since)
    well = recorded(tmp_path / "well", data_parallel, 4, 6)
    page, healthy = lostflops.why(late), lostflops.why(well).budget
    first = page.findings[0]
    assert (first.name, first.rank) == ("rank-arrives-last", 2)
    assert first.predicted is not None and page.budget is not None and healthy is not None
    assert first.predicted.ns == pytest.approx(page.budget.mean - healthy.mean, rel=0.02)


def test_many_batches_of_a_step_that_are_handed_over_need_no_more_workers(tmp_path: Path) -> None:
    """Eight batches of 300 µs each: that is what a queue between processes costs."""

    def step(s: Step, number: int) -> None:
        for _ in range(8):
            s.loads()
            train(s, 3)
            s.reads()
        s.updates()

    (finding,) = (
        f for f in lostflops.why(recorded(tmp_path, step)).findings if f.name == "data-loading-starves-device"
    )
    assert "for each of 8 batches a step, no more than handing over a batch costs" in finding.next
    assert finding.remedies == () and finding.next.endswith("on a thread, before its step begins.")


def test_a_cpu_that_waits_no_more_is_ahead_in_the_first_recorded_step_too(tmp_path: Path) -> None:
    """Recorded from a wait on, the replay's first step begins with nothing to do; the job's did not."""

    def waits(s: Step, number: int) -> None:
        s.loads(2)
        train(s, 6)
        s.reads()

    def runs_ahead(s: Step, number: int) -> None:
        s.loads(2)
        train(s, 6)

    before, after = (recorded(tmp_path / job.__name__, job) for job in (waits, runs_ahead))
    (predicted,) = lostflops.whatif(before, "no-sync").predictions
    truth = lostflops.why(after).budget
    assert truth is not None and predicted.low_ns is not None and predicted.high_ns is not None
    assert predicted.predicted_ns == pytest.approx(truth.mean, rel=0.01)
    assert predicted.low_ns <= truth.mean <= predicted.high_ns


def with_checkpoint(step: Step, number: int, slow: bool = False, blocks: bool = False) -> None:
    """60 MB leave on a stream of their own while the next step runs, or while the CPU waits for them."""
    step.p.noise = 0.02
    step.loads()
    for _ in range(8):
        if slow:
            step.p.work(150)
        step.forward(100)
    with step.backward():
        for _ in range(8):
            step.back(100)
    step.updates()
    step.reads()
    with step.frame("torch/distributed/checkpoint/state_dict_saver.py(250): async_save"):
        for _ in range(3):
            step.copies(20)
        if blocks:
            step.p.synchronise("cudaStreamSynchronize", 30)


def page(folder: Path, steps: int = 5, **how: bool) -> Page:
    def saves(machine: Machine) -> None:
        name = "torch/serialization.py(943): save"
        thread_beside(machine, 0, name, [(number, 4.0) for number in range(2, 2 + steps)])

    made = recorded(folder, lambda s, n: with_checkpoint(s, n, **how), steps=steps, stacks=True, beside=saves)
    return lostflops.why(made)


def test_a_checkpoint_in_the_background_does_not_hold_the_job_up(tmp_path: Path) -> None:
    """Its copies take 3 ms of each step; the 0.4 ms that nothing hides are those in which the CPU loads."""
    said = page(tmp_path)
    assert said.budget is not None and said.budget.of("copy") > 0.02 * said.budget.ns
    assert not [f.claim for f in said.findings if "hold" in f.claim or f.name == "copies-exposed"]


def test_copies_that_nothing_waits_for_show_a_cpu_that_is_late(tmp_path: Path) -> None:
    """The CPU launches the forward pass slowly; the GPU copies meanwhile."""
    said = page(tmp_path, slow=True)
    first = said.findings[0]
    assert first.claim.startswith("The GPU only copies a checkpoint for ") and said.budget is not None
    assert first.size == pytest.approx(said.budget.of("copy") / said.budget.num_windows, rel=0.05)
    assert first.claim.endswith("does not wait for these copies: the CPU launches it late.")
    assert first.gain == "unknown" and "another thread saves meanwhile" in first.evidence[0]


def test_copies_of_a_checkpoint_that_the_cpu_waits_for_hold_the_job_up(tmp_path: Path) -> None:
    said = page(tmp_path, blocks=True)
    first = said.findings[0]
    assert "hold the job up for 3.0" in first.claim and first.gain == "at most"
    assert said.verdict.startswith("Held up by checkpoints")
    assert "of the" in said.verdict and "the GPU is idle" not in said.verdict


DCP = "torch/distributed/checkpoint/"


def test_a_save_in_the_background_that_blocks_is_told_by_its_copy_to_the_cpu(tmp_path: Path) -> None:
    """`async_save` copies for 10 ms before it returns: to save in the background is no advice."""

    def step(s: Step, number: int) -> None:
        train(s, 3)
        s.updates()
        with s.frame(f"{DCP}state_dict_saver.py(250): async_save"):
            with s.frame(f"{DCP}staging.py(196): stage"):
                size = {"bytes": 40_000_000, "memory bandwidth (GB/s)": 4.0}
                kind = "Memcpy DtoH (Device -> Pageable)", 10 * MS, 7, "gpu_memcpy", "cudaMemcpyAsync"
                s.p.launch(Work(*kind, args=size), us=6, blocking=True)
            with s.frame(f"{DCP}_async_thread_executor.py(60): execute_save"):
                s.p.work(300)

    said = lostflops.why(recorded(tmp_path, step, stacks=True))
    first = said.findings[0]
    assert said.verdict.startswith("Held up by checkpoints: ") and "logging" not in said.verdict
    assert first.size == pytest.approx(10.3 * MS, rel=0.01) and first.remedies == ()
    assert "the job saves in the background: `async_save` returns after " in first.evidence[0]
    assert first.next.startswith("Copy the state to the CPU beside the next step: ")
    assert not [fact for fact in first.evidence if "of all step time" in fact]


def test_sequence_parallelism_is_no_sharding_where_no_group_is_described(tmp_path: Path) -> None:
    """Shards are never reduced in the forward pass."""
    group = Group("1", (0, 1, 2, 3))

    def step(s: Step, number: int) -> None:
        for _ in range(6):
            s.sends("all-gather", group, 60)
            s.forward(150)
            s.sends("reduce-scatter", group, 60)
        with s.backward():
            for _ in range(6):
                s.sends("all-gather", group, 60)
                s.back(150)
                s.sends("reduce-scatter", group, 60)
        s.updates()
        s.reads()

    first = lostflops.why(recorded(tmp_path, step, 4, groups=[group])).findings[0]
    assert first.name == "communication-exposed"
    assert "all of it: tensor parallelism" in first.evidence
    assert "accumulate" not in first.next.replace("accumulating gradients does not save any", "")


def hybrid(step: Step, number: int) -> None:
    """Weights are sharded over four ranks, gradients reduced over two such groups as well."""
    shard = Group(f"s{step.rank // 4}", tuple(range(step.rank // 4 * 4, step.rank // 4 * 4 + 4)))
    twin = Group(f"r{step.rank % 4}", (step.rank % 4, step.rank % 4 + 4), 24)
    step.loads()
    for _ in range(6):
        step.forward(220)
    with step.backward():
        last = ""
        for _ in range(6):
            step.back(220)
            done = step.sends("reduce-scatter", shard, 150, 60, waits=False)
            step.p.wait(done, 24)
            last = step.sends("all-reduce", twin, 500, 8, waits=False)
        step.p.wait(last, 7)
    step.updates()
    step.reads()


def test_a_late_rank_costs_what_it_makes_others_late_for_others(tmp_path: Path) -> None:
    groups = [Group(f"s{n}", tuple(range(4 * n, 4 * n + 4))) for n in range(2)]
    groups += [Group(f"r{n}", (n, n + 4)) for n in range(4)]
    slow = recorded(tmp_path / "slow", hybrid, 8, 4, speed={3: 1.3}, groups=groups)
    well = recorded(tmp_path / "well", hybrid, 8, 4, groups=groups)
    said, healthy = lostflops.why(slow), lostflops.why(well).budget
    late = next(f for f in said.findings if f.name == "rank-arrives-last")
    assert said.budget is not None and healthy is not None
    assert late.rank == 3 and late.claim.startswith("Rank 3 makes a step ")
    assert late.size == pytest.approx(said.budget.mean - healthy.mean, rel=0.1)


def test_a_step_whose_first_kernel_names_no_launch_begins_before_it(tmp_path: Path) -> None:
    """After 12 ms of loading on an idle GPU that kernel was not launched in the step before."""

    def step(s: Step, number: int) -> None:
        s.loads(12)
        train(s)
        s.updates()
        s.reads()

    (file,) = recorded(tmp_path, step).iterdir()
    trace = json.loads(file.read_text())
    marks = {e["name"]: e["ts"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")}
    kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]
    first = min((e for e in kernels if e["ts"] > marks["ProfilerStep#4"]), key=lambda e: e["ts"])
    number = f'"correlation": {first["args"]["correlation"]}'
    # As text, since numbers of so many digits would be rounded.
    parts = file.read_text().split("\n  {\n")
    kept = [part.replace(number, '"nothing": 0') if '"kernel"' in part else part for part in parts]
    file.write_text("\n  {\n".join(kept))
    ledger = lostflops.ask(tmp_path, "step_ledger")
    steps = ledger.select("step", "start", "end").unique().sort("step")
    ns = (steps["end"] - steps["start"]).to_list()
    assert max(ns) - min(ns) < MS


def test_a_backward_pass_that_is_captured_is_no_lost_work(tmp_path: Path) -> None:
    """The third of five steps captures what all replay: its backward pass launches on autograd's thread."""

    def asks(step: Step, many: int) -> None:
        for _ in range(many):
            with step.p.row("cpu_op", "aten::mm"):
                step.p.call("cudaLaunchKernel", 4)
                step.p.work(200)

    def step(s: Step, number: int) -> None:
        s.loads()
        s.launches("aten::mm", GEMM, 100)
        if number == 4:
            s.p.call("cudaStreamBeginCapture", 20)
            asks(s, 10)
            with s.backward(), s.p.row("cpu_op", "autograd::engine::evaluate_function: MmBackward0"):
                asks(s, 40)
            s.p.call("cudaStreamEndCapture", 300)
        nodes = [Work(GEMM, 50 * US, api="cudaGraphLaunch", args={"graph node id": n}) for n in range(40)]
        s.p.launch(*nodes, us=40)
        s.reads()

    said = lostflops.why(recorded(tmp_path, step))
    assert not [note for note in said.notes if "lost" in note]
    (one,) = (f for f in said.findings if f.name == "outlier-step")
    assert "most of it is graph capture" in one.claim and not one.doubt
    (told,) = (fact for fact in said.quality if fact.name == "launches captured into a graph")
    assert told.count == 50


@pytest.mark.parametrize("trains", [False, True])
def test_tokens_cannot_be_read_every_hundredth_step(tmp_path: Path, trains: bool) -> None:
    """Sixteen tokens, each of a pass of 18 short kernels; then a training step or none."""

    def step(s: Step, number: int) -> None:
        for _ in range(16):
            for _ in range(18):
                s.launches("aten::mm", GEMM, 12)
            s.reads()
        if trains:
            train(s, 3)
            s.updates()
            s.reads()

    made = recorded(tmp_path, step)
    found = {f.name: f for f in lostflops.why(made).findings}
    waits = found["host-waits-for-device"]
    assert waits.next.startswith("Read the values of several passes at once") and waits.remedies == ()
    assert waits.evidence[0].startswith("16 of these waits come after a pass of the model without gradients")
    if "launch-bound" in found:
        assert ("fused-optimizer" in found["launch-bound"].remedies) is False
    # The CPU launches for what it does not wait, backward pass included: 14 µs for each operator and no more.
    spent = lostflops.ask(made, "idle_summary").filter(account="idle.launch_bound")["host_per_step"][0]
    asked = 14 * US * (16 * 18 + (3 * 3 + 1) * trains)
    assert asked < spent < 1.15 * asked


def test_a_token_whose_pass_is_a_graph_is_not_told_to_use_graphs(tmp_path: Path) -> None:
    def step(s: Step, number: int) -> None:
        s.p.work(400)
        nodes = [Work(GEMM, 30 * US, api="cudaGraphLaunch", args={"graph node id": n}) for n in range(40)]
        s.p.launch(*nodes, us=40)
        s.reads()

    (waits,) = (
        f for f in lostflops.why(recorded(tmp_path, step)).findings if f.name == "host-waits-for-device"
    )
    assert waits.next.endswith("where it is evaluated, add up on the GPU.")
    assert any(fact.startswith("most of these waits come after a pass") for fact in waits.evidence)


def test_functions_that_run_one_after_the_other_have_their_own_times(tmp_path: Path) -> None:
    """3 ms and 2 ms in two functions, and 0.1 ms in what calls them."""

    def step(s: Step, number: int) -> None:
        with s.frame("train.py(20): main"):
            for name, ms in (("preprocess", 3), ("tally", 2)):
                s.p.work(50)
                with s.frame(f"train.py(5): {name}"):
                    s.p.work(1000 * ms)
            train(s, 3)
            s.reads()

    (first,) = lostflops.why(recorded(tmp_path, step, stacks=True)).findings
    assert "`preprocess` (3.0" in first.claim and "`tally` (2.0" in first.claim
