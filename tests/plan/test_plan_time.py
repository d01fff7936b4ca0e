"""The planner's time: simulated offload, bounding resources, and a ranking that every cost can turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.errors import BadCard, BadOption, NoSuchHardware
from lostflops.plan import hardware
from lostflops.plan.models import named
from lostflops.plan.serve import inference, kv_cache
from lostflops.plan.train import calibration, layer_time
from lostflops.plan.train import job as training
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.ranking import Ranking, rank
from lostflops.plan.train.static_memory import Lora
from lostflops.plan.train.timeline import free_layers, simulate
from planned import job, patient

# Saved GB per layer, t_f and t_b in ms, link GB/s out and in, layers; synchronous and asynchronous step over
# compute, hidden per cent.
TIMELINES = [
    (1.394, 16.19, 17.10, 55, 55, 80, 2.48, 1.50, 66),
    (1.394, 16.19, 17.10, 297, 375, 80, 1.25, 1.00, 100),
    (1.394, 16.19, 17.10, 170, 415, 80, 1.34, 1.00, 100),
    (0.067, 16.19, 17.10, 55, 55, 80, 1.07, 1.00, 100),
    (1.645, 9.16, 18.94, 55, 55, 32, 3.00, 2.03, 49),
    (1.645, 9.16, 18.94, 297, 375, 32, 1.33, 1.00, 100),
    (6.581, 51.31, 112.39, 55, 55, 32, 2.37, 1.41, 70),
    (6.581, 51.31, 112.39, 297, 375, 32, 1.23, 1.00, 100),
    (1.511, 8.25, 17.10, 55, 55, 36, 3.05, 2.07, 47),
]


@pytest.mark.parametrize("row", TIMELINES)
def test_the_timeline_gives_the_reference_table(row: tuple[float, ...]) -> None:
    saved, forward, backward, out, into, layers, sync, overlapped, hidden = row
    line = simulate(int(layers), forward, backward, saved / out * 1e3, saved / into * 1e3)
    assert 1 + line.copies / line.compute == pytest.approx(sync, abs=0.01)
    assert line.total / line.compute == pytest.approx(overlapped, abs=0.006)
    assert 100 * line.hidden == pytest.approx(hidden, abs=0.6)


MILLISECONDS = st.floats(0.01, 100)


@settings(patient)
@given(st.integers(1, 60), MILLISECONDS, MILLISECONDS, MILLISECONDS, MILLISECONDS, st.integers(0, 60))
def test_a_step_lies_between_full_overlap_and_none(
    layers: int, forward: float, backward: float, out: float, into: float, offloaded: int
) -> None:
    line = simulate(layers, forward, backward, out, into, offloaded)
    n = min(layers, offloaded)
    close = 1 + 1e-9
    fastest = max(layers * forward, n * out) + max(layers * backward, n * into)
    # A copy that starts with the pass before it may end with it, so each direction bounds by itself.
    assert line.total * close >= max(layers * (forward + backward), n * into, fastest if n == 0 else 0)
    assert line.total <= (layers * (forward + backward) + n * (out + into)) * close
    assert simulate(layers, forward, backward, out, into, 0).exposed == pytest.approx(0, abs=1e-6)


@settings(patient)
@given(st.integers(3, 40), MILLISECONDS, MILLISECONDS, MILLISECONDS, MILLISECONDS)
def test_what_is_free_does_not_make_the_step_longer(
    layers: int, forward: float, backward: float, out: float, into: float
) -> None:
    n = free_layers(layers, forward, backward, out, into)
    line = simulate(layers, forward, backward, out, into, n)
    assert line.exposed <= line.compute / 1000
    assert 0 <= n <= layers - 2


def test_a_layer_of_llama_2_70b_takes_what_the_reference_computes() -> None:
    there, back, again = training.passes(job("llama-2-70b", lora=Lora(targets=("q", "v"), rank=1)), 0)
    assert there.compute * 1e3 == pytest.approx(16.19, rel=0.001)
    assert back.compute * 1e3 == pytest.approx(17.10, rel=0.001)
    assert there.bound == "compute" and again == 0
    full = training.passes(job(sequence=8192), 0)
    assert full[0].compute * 1e3 == pytest.approx(9.16, rel=0.001)
    assert full[1].compute * 1e3 == pytest.approx(18.94, rel=0.001)


def test_full_recompute_costs_one_forward() -> None:
    asked = job("llama-2-70b", lora=Lora(rank=1), checkpointing="full")
    there, back, again = training.passes(asked, 0)
    assert again == there.seconds
    assert 1 + again / (there.seconds + back.seconds) == pytest.approx(1.49, abs=0.005)


def test_few_tokens_are_bound_by_memory_and_a_slow_network_by_the_network() -> None:
    few = training.passes(job(sequence=64), 0)
    assert few[0].bound == "memory"
    slow = msgspec.structs.replace(hardware.gpu("h200"), network=1e8)
    apart = replace(job(layout=Layout(gpus=16, sharding="zero-3")), gpu=slow)
    assert training.passes(apart, 0)[0].bound == "network"
    near = replace(job(layout=Layout(gpus=8, sharding="zero-3")), gpu=slow)
    assert training.passes(near, 0)[0].bound == "compute"


def fastest(asked: training.Training) -> tuple[str, ...]:
    return rank(asked).ways[0].changes


TIGHT = job("llama-2-70b", "gh200", lora=Lora(), layout=Layout(gpus=4, sharding="zero-3"))


def test_the_link_turns_offload_into_checkpointing() -> None:
    quick, slow = hardware.link("c2c"), hardware.link("pcie4")
    assert fastest(replace(TIGHT, link=quick)) == ("offload activations",)
    assert not any("offload activations" in name for name in fastest(replace(TIGHT, link=slow)))


def test_host_memory_turns_offload_into_checkpointing() -> None:
    small = msgspec.structs.replace(TIGHT.gpu, host_memory=10**9)
    turned = fastest(replace(TIGHT, gpu=small, link=hardware.link("c2c")))
    assert any("checkpoint" in name for name in turned)


def test_the_rate_of_compute_turns_checkpointing_into_offload() -> None:
    on_pcie = replace(TIGHT, link=hardware.link("pcie5"))
    slow = msgspec.structs.replace(TIGHT.gpu, sustained=45e12)
    assert "offload activations" not in fastest(on_pcie)
    assert fastest(replace(on_pcie, gpu=slow)) == ("offload activations",)


def test_a_job_that_fits_is_told_to_stay_as_it_is() -> None:
    found = rank(job(layout=Layout(gpus=8, sharding="fsdp2")))
    assert found.verdict.startswith("It fits as it is, with ")
    assert found.asked.prediction.fits


def test_what_nothing_makes_fit_is_said() -> None:
    tiny = msgspec.structs.replace(hardware.gpu("a100"), memory=8 * 10**9, host_memory=10**9)
    found = rank(replace(job("llama-2-70b"), gpu=tiny))
    assert found.ways == ()
    assert "Nothing that was tried makes it fit" in found.verdict


def remark(found: Ranking, name: str) -> str:
    return next(way.remark for way in found.alone if way.changes == (name,))


def test_offload_that_does_not_lower_the_peak_is_said_to_buy_nothing() -> None:
    """The peak is at the update: no activation is there."""
    asked = job("llama-3-8b", sequence=128)
    assert training.Prediction(asked).peak.name in ("backward ends", "update")
    said = remark(rank(asked), "offload activations")
    assert said == "no help: the peak is optimizer states and weights"


def test_no_way_in_the_ranking_has_a_needless_change() -> None:
    ways = rank(replace(TIGHT, link=hardware.link("pcie5"), layout=Layout(gpus=4))).ways
    assert len(ways) > 2
    for way in ways:
        for other in ways:
            if set(other.changes) < set(way.changes):
                assert way.prediction.step_ns < other.prediction.step_ns


def test_ways_process_the_same_tokens_per_step() -> None:
    asked = job("llama-3-8b", "gh200", microbatch=4, layout=Layout(gpus=4))
    assert {way.prediction.tokens for way in rank(asked).alone} == {4 * 4 * 4096}


def test_fp8_is_for_speed_and_does_not_lower_memory() -> None:
    found = rank(job(layout=Layout(gpus=8, sharding="fsdp2")))
    fp8 = next(way.prediction for way in found.alone if way.changes == ("FP8",))
    assert fp8.peak.bytes == found.asked.prediction.peak.bytes
    assert fp8.step_ns < found.asked.prediction.step_ns
    assert not any(way.changes == ("FP8",) for way in rank(job(gpu="a100")).alone)


def test_attention_is_counted_causally() -> None:
    assert layer_time.attention_operations(named("llama-2-70b"), 4096, 1) == 2 * 4096**2 * 8192


# KiB per token; ms for 4,096 tokens over 55 and 375 GB/s.
CACHES = [("llama-2-7b", 512, 39.0, 5.7), ("llama-2-70b", 320, 24.4, 3.6), ("llama-3-8b", 128, 9.8, 1.4)]


@pytest.mark.parametrize(("name", "size", "pcie", "c2c"), CACHES)
def test_a_cache_takes_and_comes_back_as_the_reference_says(
    name: str, size: int, pcie: float, c2c: float
) -> None:
    model = named(name)
    assert kv_cache.per_token(model) == size * 1024
    assert kv_cache.reload_seconds(model, 4096, 55e9) * 1e3 == pytest.approx(pcie, abs=0.1)
    assert kv_cache.reload_seconds(model, 4096, 375e9) * 1e3 == pytest.approx(c2c, abs=0.05)


def test_latent_attention_caches_one_compressed_state() -> None:
    assert kv_cache.per_token(named("deepseek-v3")) == 61 * (512 + 64) * 2


def served(model: str = "llama-2-70b", gpu: str = "gh200", **more: object) -> inference.Serving:
    asked = inference.Serving(
        named(model), hardware.gpu(gpu), hardware.link("pcie5"), Layout(), prompt=1024, generated=128
    )
    return replace(asked, **more)  # pyright: ignore[reportArgumentType]


def test_streamed_weights_bound_each_token_by_the_link() -> None:
    for link, seconds in (("pcie5", 1.2), ("c2c", 0.176)):
        pace = inference.Served(served(streamed=66 * 10**9, link=hardware.link(link))).paces[1]
        assert pace.bound == "link"
        assert pace.ns / 1e9 == pytest.approx(seconds, rel=0.01)


def test_a_token_alone_is_bound_by_memory_and_prompts_by_compute() -> None:
    prompts, each = inference.Served(served("llama-3-8b")).paces
    assert (prompts.bound, each.bound) == ("compute", "memory")
    # 15.01 GB of weights (the embedding's table is not read) and 0.15 of cache at 0.83 x 4 TB/s, 32 layers
    # of 55 us.
    assert each.ns / 1e6 == pytest.approx((15.01 + 0.151) / 3.32 + 32 * 0.055, rel=0.001)


@settings(patient, max_examples=30)
@given(st.integers(1, 64), st.integers(16, 20_000), st.sampled_from(["llama-3-8b", "deepseek-v2-lite"]))
def test_the_largest_batch_fits(batch: int, prompt: int, model: str) -> None:
    largest = inference.Served(served(model, batch=batch, prompt=prompt)).largest_batch
    assert inference.Served(served(model, batch=largest, prompt=prompt)).fits
    assert not inference.Served(served(model, batch=largest + 1, prompt=prompt)).fits


def test_the_fastest_way_that_changes_no_number_is_named() -> None:
    found = inference.options(served())
    assert "without other numbers in the model: stream weights" in inference.verdict(found)


@pytest.mark.parametrize("name", hardware.GPUS)
def test_every_gpu_has_a_link_and_says_how_sure_it_is(name: str) -> None:
    card = hardware.gpu(name)
    assert hardware.link(card.link).status and "assumed" in card.provenance


def test_a_gpu_card_is_read_from_a_file(tmp_path: Path) -> None:
    card = msgspec.structs.replace(hardware.gpu("h100"), name="mine", memory=77, status="measured")
    (tmp_path / "mine.json").write_bytes(msgspec.json.encode(card))
    assert hardware.gpu(str(tmp_path / "mine.json")) == card


def line(operation: str, device: str, bandwidth: float | None, **more: object) -> dict[str, object]:
    return {"operation": operation, "device": device, "bandwidth": bandwidth, "host_memory": "pinned"} | more


def test_a_measured_link_is_the_slowest_gpu_on_its_best_memory_node(tmp_path: Path) -> None:
    cards = [
        line("device to host", "GPU0", 50.0, numa=0, latency=9000),
        line("device to host", "GPU0", 20.0, numa=1),
        line("device to host", "GPU1", 48.0, numa=1),
        line("device to host", "GPU1", 5.0, host_memory="pageable"),
        line("host to device", "GPU0", 55.0),
        line("host to device", "GPU1", 30.0, both=True),
        line("host to device", "GPU1", None),
    ]
    file = tmp_path / "links.json"
    file.write_text(json.dumps({"kind": "links", "cards": cards, "bandwidths": []}))
    link = hardware.link(str(file))
    assert (link.out, link.into, link.latency_ns) == (48e9, 55e9, 9000)
    assert link.status.startswith("measured")


NO_CARDS = [
    "",
    "[]",
    "{}",
    '{"kind": "links"}',
    '{"kind": "links", "cards": [{}]}',
    '{"kind": "links", "cards": []}',
    '{"name": "x", "out": -1}',
]


@pytest.mark.parametrize("content", NO_CARDS)
def test_what_is_no_card_is_refused_in_words(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(BadCard):
        hardware.link(str(tmp_path / "odd.json"))
    with pytest.raises(BadCard):
        hardware.gpu(str(tmp_path / "odd.json"))


def test_unknown_hardware_is_said_with_a_suggestion() -> None:
    with pytest.raises(NoSuchHardware, match="Did you mean 'gh200'"):
        hardware.gpu("gh20")
    with pytest.raises(NoSuchHardware, match="'pcie5'"):
        hardware.link("pcie")


def test_a_run_gives_the_rate_at_which_it_computed() -> None:
    """The plan's own compute time, played as a run, gives back the rate it was made with."""
    asked = job("llama-3-8b", checkpointing="full", fused_loss=True, layout=Layout(gpus=8, sharding="fsdp2"))
    fast = replace(asked, gpu=msgspec.structs.replace(asked.gpu, sustained=600e12))
    layers = sum(s.ns for s in training.Prediction(fast).spans if s.bound == "compute")
    rows = [(rank, step, layers, layers + 7) for rank in range(2) for step in range(3)]
    found, said = calibration.calibrated(asked, calibration.measured("run", rows))
    assert found.gpu.sustained == pytest.approx(600e12, rel=1e-3)
    assert found.gpu.provenance.endswith("sustained rate from the run")
    assert said.startswith("Calibrated with 3 steps on 2 ranks: compute ")


def test_a_run_of_another_job_or_of_too_few_steps_is_refused_in_words() -> None:
    with pytest.raises(BadOption, match="2 steps in which a GPU computes"):
        calibration.measured("run", [(0, 1, 5, 9), (0, 2, 5, 9), (0, 3, 0, 9)])
    run = calibration.measured("run", [(0, step, 10**6, 10**7) for step in range(3)])
    with pytest.raises(BadOption, match="has at most 989"):
        calibration.calibrated(job(), run)


def test_streamed_frozen_weights_hide_behind_enough_tokens() -> None:
    """Llama-2-70B at 4,096 tokens: 31.1 ms of copy over PCIe against 16 of compute, 4.6 ms over C2C."""
    asked = job("llama-2-70b", "gh200", lora=Lora(), streamed=True)
    waits = {
        (link, sequence): sum(
            span.ns
            for span in training.Prediction(replace(asked, link=hardware.link(link), sequence=sequence)).spans
            if span.bound == "link"
        )
        for link in ("pcie5", "c2c")
        for sequence in (512, 4096, 8192)
    }
    copy, forward, backward = (1.7113e9 / 55e9, 16.19e-3, 17.10e-3)
    assert waits["pcie5", 4096] / 1e9 == pytest.approx(80 * (2 * copy - forward - backward), rel=0.01)
    assert waits["pcie5", 8192] == waits["c2c", 4096] == 0
    assert waits["c2c", 512] > 0


def test_a_model_of_several_gpus_trains_on_one_with_streamed_weights() -> None:
    asked = job("llama-2-70b", "gh200", lora=Lora(), link=hardware.link("c2c"))
    found = rank(asked)
    assert not found.asked.prediction.fits
    best = found.ways[0]
    assert best.changes == ("offload activations", "stream frozen weights")
    base = best.prediction.peak.parts[0]
    assert base.bytes == 2 * (3 * 855_654_400 + 2 * 32000 * 8192 + 8192)
    assert best.prediction.host_bytes > 2 * 77 * 855_654_400


def test_streamed_weights_and_activations_share_the_way_in() -> None:
    asked = job("llama-2-70b", "gh200", lora=Lora(), sequence=8192)
    waits = {
        (streamed, offloaded): sum(
            span.ns
            for span in training.Prediction(replace(asked, streamed=streamed, offloaded=offloaded)).spans
            if span.bound == "link"
        )
        for streamed in (False, True)
        for offloaded in (0, 78)
    }
    assert waits[True, 0] == waits[False, 0] == 0
    assert waits[True, 78] > waits[False, 78] > 0
