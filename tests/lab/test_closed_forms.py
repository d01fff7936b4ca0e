"""On a machine that takes no time of its own, jobs take what the textbooks say, to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from lostflops.lab.simulate import truth
from lostflops.lab.simulate.engine import RanJob, ran, ran_alone
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.model.blocks import HostOperator, HostPace, LaunchedKernel, OperatorBlock
from lostflops.lab.simulate.model.transformer import TransformerBlocks
from lostflops.lab.simulate.running.costs import IDEAL
from lostflops.lab.simulate.running.network import Network
from lostflops.lab.simulate.running.recorder import Recorder
from lostflops.lab.simulate.strategy import strategy

FREE = Network(8, 1e30, 1e30, 0, 0)
FORWARD, INPUTS, WEIGHTS = 1_700, 2_300, 1_100  # ns of one half of a layer; unequal, so that mix-ups show


def block(*ns: int) -> OperatorBlock:
    kernels = tuple(LaunchedKernel("gemm", each) for each in ns)
    return OperatorBlock([HostOperator("aten::mm", kernels)], HostPace(0, 0))


class Plain:
    """Layers whose halves take given times, and nothing around them."""

    experts = False
    embedding = loss = block()
    parameters = 1_000_000
    expert_parameters = routed = 0

    def forward(self, half: str) -> OperatorBlock:
        return block(FORWARD)

    def backward(self, half: str, part: str = "both") -> OperatorBlock:
        return block(*{"inputs": [INPUTS], "weights": [WEIGHTS], "both": [INPUTS, WEIGHTS]}[part])

    def optimizer(self, owned: int, calls: int) -> OperatorBlock:
        return block()


def ideal(text: str, ranks: int, layers: int, network: Network = FREE, **knobs: Any) -> SimulatedJob:
    job = SimulatedJob(
        strategy(text, ranks), steps=1, warmup=1, layers=layers, costs=IDEAL, given_network=network,
        reads_loss=False, **knobs,
    )  # fmt: skip
    job._blocks[job.tokens] = cast("TransformerBlocks", Plain())
    return job


def steps(job: SimulatedJob, outcome: RanJob) -> list[Mapping[str, int]]:
    """By rank the accounts of the recorded step."""
    found: list[Mapping[str, int]] = []
    for rank in range(job.ranks):
        recorder = Recorder(rank, job.warmup)
        known = truth.rank_truth(rank, recorder, ran_alone(job, rank, outcome.calls[rank], recorder))
        found.append({name: values[0] for name, values in known.items()})
    return found


def length(step: Mapping[str, int]) -> int:
    return step["end"] - step["start"]


@pytest.mark.parametrize(
    ("text", "stages", "microbatches", "chunks"),
    [
        ("pp2-gpipe-m3", 2, 3, 1), ("pp4-gpipe-m8", 4, 8, 1),
        ("pp2-m5", 2, 5, 1), ("pp4-m4", 4, 4, 1), ("pp4-m9", 4, 9, 1), ("pp8-m16", 8, 16, 1),
        ("pp2-interleaved-v2-m4", 2, 4, 2), ("pp4-interleaved-v2-m8", 4, 8, 2),
        ("pp4-interleaved-v3-m8", 4, 8, 3),
    ],
)  # fmt: skip
def test_a_pipeline_loses_one_less_than_its_stages_of_each_pass(
    text: str, stages: int, microbatches: int, chunks: int
) -> None:
    """The bubble is (p - 1) / (v m) of the work."""
    job = ideal(text, stages, layers=stages * chunks)
    both = 2 * (FORWARD + INPUTS + WEIGHTS)
    for step in steps(job, ran(job)):
        assert step["compute"] == microbatches * chunks * both
        assert length(step) - step["compute"] == (stages - 1) * both
        assert step["wait"] + step["idle"] == (stages - 1) * both


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (4, 8), (4, 12), (8, 16)])
def test_a_zero_bubble_schedule_fills_the_drain_with_gradients_of_weights(
    stages: int, microbatches: int
) -> None:
    """ZB-H1 loses (p - 1) (F + B - 2 W), B being both gradients; here W fits into what there is to fill."""
    job = ideal(f"pp{stages}-zb-m{microbatches}", stages, layers=stages)
    for step in steps(job, ran(job)):
        assert step["compute"] == microbatches * 2 * (FORWARD + INPUTS + WEIGHTS)
        assert length(step) - step["compute"] == (stages - 1) * 2 * (FORWARD + INPUTS - WEIGHTS)


@pytest.mark.parametrize(("kind", "turns"), [("all-reduce", 2), ("all-gather", 1), ("reduce-scatter", 1)])
def test_a_ring_takes_its_turns_and_its_bytes(kind: str, turns: int) -> None:
    network = Network(8, near=4e9, far=1e9, near_start=700, far_start=9_000)
    size, ranks = 8 * 1_000_000, 8
    near = turns * (ranks - 1) * 700 + turns * size * (ranks - 1) // ranks // 4
    assert network.duration(kind, range(8), size) == near
    far = turns * (ranks - 1) * 9_000 + turns * size * (ranks - 1) // ranks
    assert network.duration(kind, range(7, 15), size) == far
    several = turns * (ranks - 1) * 9_000 + turns * size * (ranks - 1) // ranks // 2
    assert network.duration(kind, range(6, 14), size) == several  # two of them share a node, and two cards


def test_a_slow_link_slows_what_its_rank_takes_part_in() -> None:
    network = Network(8, 1e9, 1e9, 0, 0, {3: 4.0})
    assert network.duration("send", (2, 3), 1_000) == 4_000
    assert network.duration("send", (1, 2), 1_000) == 1_000
    assert network.duration("all-gather", (2, 3), 1_000) == 2_000


def test_of_overlapped_all_reduces_only_the_last_is_seen() -> None:
    """Each bucket takes less than the backward pass of the layer after it."""
    rate = 2 * 2 * 1_000_000 * 7 / 8 / 5_000 * 1e9  # 5 us for a layer's gradients
    job = ideal("ddp", 8, layers=4, network=Network(8, rate, rate, 0, 0))
    for step in steps(job, ran(job)):
        assert step["compute"] == 4 * 2 * (FORWARD + INPUTS + WEIGHTS)
        assert (step["transfer"], step["wait"], step["idle"]) == (5_000, 0, 0)
        assert length(step) == step["compute"] + 5_000


def test_without_overlap_all_of_them_are() -> None:
    rate = 2 * 2 * 1_000_000 * 7 / 8 / 5_000 * 1e9
    job = ideal("ddp", 8, layers=4, network=Network(8, rate, rate, 0, 0), overlap=False)
    for step in steps(job, ran(job)):
        assert step["transfer"] == 4 * 5_000
        assert length(step) == step["compute"] + 4 * 5_000


def test_of_overlapped_sharding_the_first_gather_and_the_last_scatter_are_seen() -> None:
    rate = 2 * 1_000_000 * 7 / 8 / 2_000 * 1e9  # 2 us for a layer's weights or gradients
    job = ideal("fsdp2", 8, layers=4, network=Network(8, rate, rate, 0, 0))
    for step in steps(job, ran(job)):
        assert step["transfer"] == 2 * 2_000
        assert length(step) == step["compute"] + 2 * 2_000


def test_ranks_wait_for_a_slow_one_by_as_much_as_it_is_slower() -> None:
    job = ideal("ddp", 4, layers=2, slow_ranks={2: (1.5, 0)})
    found = steps(job, ran(job))
    usual = 2 * 2 * (FORWARD + INPUTS + WEIGHTS)
    assert [step["compute"] for step in found] == [usual, usual, usual * 3 // 2, usual]
    assert [step["wait"] for step in found] == [usual // 2, usual // 2, 0, usual // 2]
    assert {length(step) for step in found} == {usual * 3 // 2}
