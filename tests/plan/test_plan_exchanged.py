"""Bytes that ranks exchange in a step, by the formulas of rings, and what one rank updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from lostflops.plan import hardware
from lostflops.plan.models import named
from lostflops.plan.train import job as jobs
from lostflops.plan.train import layer_time, static_memory
from lostflops.plan.train.job import Prediction, Training
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.static_memory import OPTIMIZERS, Lora
from planned import job

# A node on which a byte takes a nanosecond, and compute next to nothing: what is left is the network.
WIRE = msgspec.structs.replace(
    hardware.gpu("h100"), memory=1 << 50, node_bandwidth=1.25e9, memory_bandwidth=1e18, matmul=None,
    attention=None, sustained=1e18,
)  # fmt: skip
LLAMA = 8_030_261_248
TABLE = 128_256 * 4096
LAYER = 218_112_000
RING = 7 / 8


def spans(asked: Training) -> dict[str, int]:
    return {span.name: span.ns for span in Prediction(asked).spans}


def eight(sharding: Any, **more: Any) -> Training:
    return replace(job("llama-3-8b"), gpu=WIRE, layout=Layout(8, sharding=sharding), sequence=8, **more)


@pytest.mark.parametrize(("optimizer", "size"), [("adam", 2), ("adam-fp32-gradients", 4)])
def test_ddp_reduces_all_gradients_embedding_and_head_too(optimizer: str, size: int) -> None:
    """Of 8 ranks each sends 2 x 7/8 of all gradients: 8,030,261,248 of two bytes or four."""
    found = spans(eight("none", optimizer=OPTIMIZERS[optimizer]))
    assert found["gradients reduced"] == pytest.approx(2 * RING * size * LLAMA, rel=1e-3)


@pytest.mark.parametrize("sharding", ["zero-1", "zero-2"])
def test_zero_1_and_2_move_what_ddp_moves(sharding: str) -> None:
    """Gradients are scattered, weights gathered when they are updated: twice 7/8 of 2 bytes each."""
    found = spans(eight(sharding))
    exchanged = ("gradients reduced", "weights gathered", "layers backward", "embedding exchanged")
    total = sum(found.get(name, 0) for name in exchanged)
    assert found["weights gathered"] == pytest.approx(RING * 2 * LLAMA, rel=1e-3)
    missing = TABLE if sharding == "zero-2" else 0  # the head's gradients hide behind the layers' backward
    assert total == pytest.approx(2 * RING * 2 * LLAMA - RING * 2 * missing, rel=1e-3)


def test_fsdp2_gathers_16_bits_twice_and_scatters_32() -> None:
    """Layers: 2 bytes forward, 2 + 4 backward; embedding and head in one group, gathered once."""
    found = spans(eight("fsdp2"))
    ends = 2 * TABLE + 4096
    assert found["layers forward"] == pytest.approx(RING * 2 * 32 * LAYER, rel=1e-3)
    assert found["layers backward"] == pytest.approx(RING * 6 * 32 * LAYER, rel=1e-3)
    assert found["embedding and head exchanged"] == pytest.approx(RING * 6 * ends, rel=1e-3)
    twice = spans(eight("fsdp2", microbatches=2))
    assert twice["embedding and head exchanged"] == pytest.approx(2 * RING * 6 * ends, rel=1e-3)


def test_four_bit_weights_travel_in_four_bits() -> None:
    """A layer of Llama-3-8B in NF4 with scales of scales: what it takes in memory is what is gathered."""
    lora = Lora(base_bits=4)
    done = layer_time.work(
        named("llama-3-8b"), 0, Layout(8, sharding="fsdp2"), 8, 1, lora, exchanged=layer_time.Exchanged(4, 4)
    )
    matrices = LAYER - 2 * 4096
    base = matrices // 2 + matrices // 64 + 4 * (matrices // 64 // 256) + 2 * 2 * 4096
    adapters = 4 * 16 * (4096 + 4096 + 4096 + 1024)
    assert done.gathered_bytes == pytest.approx(RING * (base + adapters), rel=1e-6)


def test_keys_and_values_go_round_a_ring_once_forward_and_with_their_gradients_backward() -> None:
    """4 ranks of 1,024 tokens: 3 blocks of K and V of 8 heads of 128 in 2 bytes; twice that backward."""
    here = Layout(4, context=4)
    done = layer_time.work(named("llama-3-8b"), 0, here, 4096, 1)
    sent = 3 * 1024 * 2 * 8 * 128 * 2
    there = layer_time.forward(done, WIRE, here, fp8=False)
    back = layer_time.backward(done, WIRE, here, fp8=False, reduces=False)
    assert (there.network * 1e9, back.network * 1e9) == pytest.approx((sent, 2 * sent))
    # Of DeepSeek-V3 a head's key is 192 wide and its value 128; of Gemma-2B tensor ranks share one head.
    latent = layer_time.work(named("deepseek-v3"), 0, here, 4096, 1).context_bytes
    assert latent == 3 * 1024 * 128 * (192 + 128) * 2
    whole = layer_time.work(named("gemma-2b"), 0, Layout(32, 8, context=4), 4096, 1).context_bytes
    assert whole == 3 * 1024 * 2 * 256 * 2


def test_tokens_that_tensor_ranks_share_go_to_experts_once() -> None:
    """Mixtral, two experts a token, 8 ranks: 2 x 7/8 of 4,096 x 4,096 in 2 bytes there, as much back."""
    shape = named("mixtral-8x7b")
    alone = layer_time.work(shape, 0, Layout(8, expert=8), 4096, 1).expert_bytes
    assert alone == 2 * 2 * 2 * 4096 * 4096 * 7 / 8
    shared = layer_time.work(shape, 0, Layout(16, 2, True, expert=8), 4096, 1).expert_bytes
    assert shared == alone / 2


def test_a_rank_updates_the_experts_it_holds_alone() -> None:
    """Mixtral on 8 with 8 expert ranks: an eighth of the dense weights, and one expert of each layer."""
    shape = named("mixtral-8x7b")
    experts = 32 * 3 * 4096 * 14336
    dense = shape.parameters() - 8 * experts
    here = Layout(8, expert=8, sharding="zero-1")
    asked = job("mixtral-8x7b", layout=here, optimizer_away=True)
    assert jobs.updated(asked, 0) == -(-dense // 8) + experts
    # Fp32 gradients come to the states in host memory, whatever is sharded.
    assert Prediction(asked).host_bytes == 16 * (-(-dense // 8) + experts)


def test_an_update_touches_a_rank_s_shard_alone() -> None:
    """Of 8 ranks each reads and writes 16 bytes of an eighth of the parameters, from ZeRO's stage 1 on."""
    card = msgspec.structs.replace(WIRE, memory_bandwidth=1e9)
    for sharding in ("zero-1", "zero-2", "zero-3"):
        found = spans(replace(eight(sharding), gpu=card))
        assert found["optimizer update"] == pytest.approx(2 * 16 * LLAMA / 8, rel=1e-6)


def test_a_gradient_is_as_wide_as_it_is_reduced() -> None:
    sizes = {
        (name, sharding, lora is not None): static_memory.gradient_bytes(
            OPTIMIZERS[name], Layout(2, sharding=sharding), lora
        )
        for name in ("adam", "adam-8bit")
        for sharding in ("zero-2", "fsdp2")
        for lora in (None, Lora())
    }
    assert sizes["adam", "zero-2", False] == sizes["adam-8bit", "fsdp2", False] == 2
    assert sizes["adam", "fsdp2", False] == sizes["adam-8bit", "zero-2", True] == 4
