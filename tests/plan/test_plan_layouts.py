"""Layouts that a plan finds, and usual questions whose answers experts know."""

from __future__ import annotations

import shlex
from dataclasses import replace

import msgspec
import pytest

from lostflops.plan import hardware
from lostflops.plan.models import named
from lostflops.plan.train import apply, layer_time, layout_search
from lostflops.plan.train.job import Training
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.ranking import Ranking, rank
from lostflops.plan.train.static_memory import OPTIMIZERS, Lora


def asked(model: str, gpu: str, gpus: int, sequence: int, **more: object) -> Training:
    """As `plan train` asks, with nothing but the model, the GPUs and the sequence given."""
    card = hardware.gpu(gpu)
    job = Training(named(model), card, hardware.link(card.link), Layout(gpus), OPTIMIZERS["adam"], sequence)
    return replace(job, **more)  # pyright: ignore[reportArgumentType]


def answered(model: str, gpu: str, gpus: int, sequence: int, **more: object) -> Ranking:
    return rank(asked(model, gpu, gpus, sequence, **more))


# Fully sharded data parallelism, and what is known to be needed besides.
USUAL = [
    ("llama-3-8b", "h100", 8, 8192, {"ZeRO stage 3"}),
    ("qwen2.5-7b", "a100", 4, 4096, {"ZeRO stage 3"}),
    ("llama-3-70b", "h100", 8, 4096, {"ZeRO stage 3", "checkpoint all but attention", "8-bit Adam"}),
    ("llama-3-70b", "h100", 64, 8192, {"ZeRO stage 3", "checkpoint all but attention"}),
    ("qwen2.5-72b", "b200", 8, 8192, {"ZeRO stage 3", "checkpoint all but attention"}),
    ("mixtral-8x7b", "h100", 8, 4096, {"ZeRO stage 3", "8-bit Adam"}),
    ("mixtral-8x22b", "h100", 32, 4096, {"expert 8", "FSDP2"}),
    ("llama-3-8b", "h100", 1, 4096, {"8-bit Adam"}),
    ("llama-2-7b", "gh200", 1, 4096, {"8-bit Adam"}),
]


@pytest.mark.parametrize(("model", "gpu", "gpus", "sequence", "among"), USUAL)
def test_a_usual_question_has_the_usual_answer(
    model: str, gpu: str, gpus: int, sequence: int, among: set[str]
) -> None:
    best = answered(model, gpu, gpus, sequence).headline
    assert among <= set(best.changes), best.name
    assert best.prediction.peak.bytes <= 0.95 * best.prediction.training.gpu.memory


def test_a_model_that_only_layouts_fit_gets_one() -> None:
    """671e9 parameters on 256 GPUs: sharding alone gathers whole layers of 256 experts."""
    found = answered("deepseek-v3", "h800", 256, 4096, microbatches=8, kernels="fused")
    here = found.headline.prediction.training.layout
    assert here.expert > 1 and found.headline.prediction.fits
    assert found.layouts and found.layouts[0].prediction.fits


def test_a_layout_leaves_the_step_what_it_is() -> None:
    job = asked("llama-3-70b", "h100", 64, 8192, microbatches=2)
    tokens = 64 * 2 * 8192
    found = layout_search.search(job, most=20)
    assert len(found) > 5
    assert {each.prediction.tokens for each in found} == {tokens}
    assert all(each.prediction.training.layout.tensor <= 8 for each in found)
    speeds = [each.per_token for each in found]
    assert speeds == sorted(speeds)


def test_a_given_layout_adapters_and_encoders_are_not_searched() -> None:
    job = asked("llama-3-70b", "h100", 64, 8192)
    given = replace(job, layout=replace(job.layout, tensor=8))
    for other in (
        given,
        replace(job, lora=Lora()),
        asked("t5-base", "h100", 8, 512),
        replace(job, layout=Layout()),
    ):
        assert layout_search.search(other) == ()


def test_small_experts_are_not_cut_by_tensor_ranks() -> None:
    found = layout_search.search(asked("qwen3-30b-a3b", "h100", 8, 4096), most=20)
    assert found and all(each.prediction.training.layout.tensor == 1 for each in found)


def test_long_sequences_are_shared_by_context_ranks() -> None:
    found = layout_search.search(asked("llama-3.1-8b", "h100", 8, 131_072), most=30)
    assert any(each.prediction.training.layout.context > 1 for each in found)
    short = layout_search.search(asked("llama-3.1-8b", "h100", 8, 8192), most=30)
    assert all(each.prediction.training.layout.context == 1 for each in short)


def test_a_card_too_small_for_training_is_told_which_adapters_fit() -> None:
    verdict = answered("llama-3-8b", "rtx-4090", 1, 2048).verdict
    assert "On 1 GPU `--method lora --checkpoint selective` fits" in verdict


def test_ranks_with_the_same_experts_share_a_network_card_with_fewer() -> None:
    """Eight GPUs of a node with other experts each: one card each, not all eight for one of them."""
    gpu = msgspec.structs.replace(hardware.gpu("h800"), node_bandwidth=1e12, network=10e9)
    here = Layout(64, expert=8, sharding="zero-3")
    assert layer_time.between_replicas(gpu, here) == pytest.approx(0.8 * 80e9)
    assert layer_time.between_replicas(gpu, here, here.expert) == pytest.approx(0.8 * 10e9)
    work = layer_time.work(named("mixtral-8x7b"), 0, here, 4096, 1)
    experts = 2 * 3 * 4096 * 14336 * 7 / 8  # one of eight, over eight ranks
    assert work.experts_gathered == pytest.approx(experts)
    assert layer_time.gathered_seconds(work, gpu, here) > experts / 8e9


def test_megatron_takes_a_layout_with_a_pipeline() -> None:
    here = Layout(64, 4, True, 8, "interleaved", 2, sharding="zero-1")
    job = asked("mixtral-8x22b", "h100", 64, 4096, layout=here, microbatches=32, checkpointing="full")
    (found,) = apply.settings(job)
    words = shlex.split(found.command)
    given = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
    assert found.framework == "Megatron-LM"
    assert given["--tensor-model-parallel-size"] == "4" and given["--global-batch-size"] == "64"
    pieces = given["--pipeline-model-parallel-layout"].split("|")  # 56 layers on 16 pieces are uneven
    assert len(pieces) == 16 and "".join(pieces).count("t") == 56
    assert pieces[0][0] == "E" and pieces[-1][-1] == "L"
    assert given["--recompute-granularity"] == "full" and "--use-distributed-optimizer" in words
    even = replace(job, shape=replace(job.shape, layers=64))
    assert "--num-virtual-stages-per-pipeline-rank 2" in apply.settings(even)[0].command
