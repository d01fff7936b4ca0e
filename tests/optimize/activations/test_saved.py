"""What autograd saves, counted; and the peak of memory, against counts by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
import torch

import tiny_models
from lostflops.optimize.activations import saved
from lostflops.optimize.activations.tensor_class import ModulePaths, operator_of, tensor_class
from lostflops.optimize.device import peak
from lostflops.optimize.refused import Refused
from tiny_models import loss_of

torch.set_num_threads(1)


# The closed forms of a Llama layer in units of one 16-bit hidden state: sequence x batch x hidden x 2 bytes.
HIDDEN, HEADS, KEYS, WIDTH, SEQUENCE, BATCH, RANK = 256, 8, 2, 896, 64, 1, 8
UNIT = 2 * SEQUENCE * BATCH * HIDDEN
PHI, KAPPA, HEAD = WIDTH / HIDDEN, KEYS / HEADS, HIDDEN // HEADS
FULL = 10 + 2 * KAPPA + 4 * PHI + 2 / HEAD + 4 / HIDDEN
FROZEN = 6 + 2 * KAPPA + 3 * PHI + 2 / HEAD + 4 / HIDDEN
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
r = RANK / HIDDEN
FORMS: dict[str, tuple[tuple[str, ...] | None, float, str, float]] = {
    "full fine-tune": (None, 0.0, "", FULL),
    "q, v": (("q_proj", "v_proj"), 0.0, "bfloat16", FROZEN + 1 + 2 * r),
    "q, k, v, o": (ALL[:4], 0.0, "bfloat16", FROZEN + 1 + 4 * r),
    "all seven": (ALL, 0.0, "bfloat16", FROZEN + 2 + PHI + 7 * r),
    "q, v with dropout": (("q_proj", "v_proj"), 0.1, "bfloat16", FROZEN + 2 * 2 + 2 * r),
    "all seven with dropout": (ALL, 0.1, "bfloat16", FROZEN + 2 * (6 + PHI) + 7 * r),
    "q, v in fp32": (("q_proj", "v_proj"), 0.0, "float32", FROZEN + 2 * 2 + 2 * 2 * r),
    "q, v in fp32 with dropout": (("q_proj", "v_proj"), 0.1, "float32", FROZEN + 4 * 2 + 2 * 2 * r),
}


def layers(recipe: str, count: int) -> tuple[Any, Any]:
    """`count` decoder layers without embedding and head, and what they are called with."""
    targets, dropout, adapters, _ = FORMS[recipe]
    model = tiny_models.llama(
        layers=count,
        hidden=HIDDEN,
        intermediate_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
    ).bfloat16()
    if targets:
        model = tiny_models.lora(model, RANK, targets, dropout, fp32=adapters == "float32")
    base = next(m for m in model.modules() if hasattr(m, "embed_tokens"))
    hidden = torch.randn(BATCH, SEQUENCE, HIDDEN, dtype=torch.bfloat16).requires_grad_()
    places = base.rotary_emb(hidden, torch.arange(SEQUENCE)[None])

    def run() -> torch.Tensor:
        state = hidden
        for layer in base.layers:
            state = layer(state, position_embeddings=places, attention_mask=None)
        return state.float().sum()

    return model, run


def moved(profile: dict[str, Any]) -> int:
    return sum(row["bytes"] for row in profile["rows"] if row["kept_reason"] is None)


@pytest.mark.parametrize("recipe", FORMS)
def test_a_llama_layer_saves_what_the_closed_form_says_to_four_decimals(recipe: str) -> None:
    """Two layers less one: what all layers share (the rotary's tables, the first input) drops out."""
    two, one = (moved(saved.saved_tensors(*layers(recipe, n))) for n in (2, 1))
    assert round((two - one) / UNIT, 4) == round(FORMS[recipe][3], 4)


def test_counting_saved_tensors_one_by_one_counts_a_layer_a_third_too_large() -> None:
    profile = saved.saved_tensors(*layers("full fine-tune", 2))
    assert 1.3 < profile["one_by_one_bytes"] / moved(profile) < 1.4


def test_a_profile_is_plain_data_and_says_when_by_whom_and_where() -> None:
    model, batch = tiny_models.llama(layers=2), tiny_models.llama_batch()
    profile = saved.saved_tensors(model, batch)
    assert json.loads(json.dumps(profile)) == profile
    rows = profile["rows"]
    assert [row["storage"] for row in rows] == list(range(len(rows)))
    assert [row["order"] for row in rows] == sorted({row["order"] for row in rows})
    end = profile["forward_ns"] + profile["backward_ns"]
    for row in rows:
        assert 0 < row["pack_ns"] < profile["forward_ns"] < row["unpack_ns"] < end
        assert 0 < row["covered_fraction"] <= 1 <= row["saves"]
    product = next(row for row in rows if row["tensor_class"] == "model.layers.*.mlp.down_proj/MulBackward0")
    assert product["module"] == "model.layers.0.mlp.down_proj"
    assert (product["bytes"], product["saves"], product["is_output"]) == (2 * 24 * 96 * 4, 1, False)
    assert product["recompute_ns"] > 0
    into_mlp = next(
        row
        for row in rows
        if row["module"] == "model.layers.0.mlp.gate_proj" and row["bytes"] == 2 * 24 * 32 * 4
    )
    assert into_mlp["saves"] == 2  # read by gate and up
    attention = next(row for row in rows if "Attention" in row["operator"])
    assert attention["is_output"]
    assert {row["kept_reason"] for row in rows} == {None, "parameter"}
    static = sum(p.numel() * 4 for p in [*model.parameters(), *model.buffers()])
    assert profile["static_bytes"] == static
    # Gradients are alive at the end, saved tensors in the middle; together never more than all at once.
    assert static + moved(profile) < profile["peak_bytes"] < 3 * static + 2 * moved(profile)


def test_a_profile_leaves_gradients_buffers_and_random_numbers_as_they_were() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5))
    batch = torch.randn(5, 4)
    loss_of(model, batch).backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients, seed = [p.grad for p in model.parameters()], torch.get_rng_state()
    values = [g.clone() for g in gradients]
    profile = saved.saved_tensors(model, batch)
    assert any(row["kept_reason"] is None for row in profile["rows"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), seed)
    for parameter, gradient, value in zip(model.parameters(), gradients, values, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, value)
    assert not model._forward_hooks and not model[0]._forward_pre_hooks


def test_a_profile_leaves_numpys_random_numbers_as_they_were() -> None:
    """Both of its passes drew on, and training went on with other numbers."""
    model, drawn = tiny_models.mlp(layers=1), []

    def run() -> torch.Tensor:
        drawn.append(numpy.random.random())
        return model(tiny_models.mlp_batch()).sum() * drawn[-1]

    numpy.random.seed(3)
    saved.saved_tensors(model, run)
    assert drawn == [numpy.random.random()] * 2


def test_a_profile_that_fails_leaves_gradients_and_hooks_too() -> None:
    model = tiny_models.mlp(layers=1)
    gradient = torch.ones_like(model[0].weight)
    model[0].weight.grad = gradient

    def run() -> torch.Tensor:
        model(tiny_models.mlp_batch())
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        saved.saved_tensors(model, run)
    assert model[0].weight.grad is gradient
    assert not model[0]._forward_hooks


def test_a_result_without_a_gradient_is_refused() -> None:
    model = tiny_models.mlp(layers=1).requires_grad_(False)
    with pytest.raises(Refused, match="no gradient"):
        saved.saved_tensors(model, tiny_models.mlp_batch())


def test_a_write_after_the_save_is_noticed_although_hooks_switch_autograds_check_off() -> None:
    weight = torch.nn.Linear(3, 3)

    def run() -> torch.Tensor:
        y = weight(torch.ones(2, 3)).exp()
        z = (y * y).sum()
        y.mul_(3)
        return z

    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved.saved_tensors(weight, run)


def test_an_address_that_is_used_again_is_a_new_storage() -> None:
    """Each save is dropped before the next one is made, so the allocator gives out the same memory."""
    scale = torch.nn.Linear(64, 64, bias=False)

    def run() -> torch.Tensor:
        for _ in range(3):
            scale(torch.ones(1, 64)).square().sum()
        return scale(torch.ones(1, 64)).square().sum()

    profile = saved.saved_tensors(scale, run)
    squares = [row for row in profile["rows"] if row["operator"].startswith("Mm") and row["bytes"] == 256]
    assert len(squares) == 4


def test_what_is_only_a_view_of_its_storage_says_how_much_it_covers() -> None:
    bias = torch.nn.Linear(2, 8)

    def run() -> torch.Tensor:
        y = bias(torch.ones(4, 2))
        expanded = y.sum(0).exp().expand(16, 8)
        return y[:, :2].square().sum() + (expanded * expanded).sum()

    rows = saved.saved_tensors(bias, run)["rows"]
    covered = {(row["bytes"], row["covered_fraction"]) for row in rows if row["kept_reason"] is None}
    assert (4 * 8 * 4, 0.25) in covered
    assert (8 * 4, 1.0) in covered  # an expansion is no larger than what it expands


def test_layers_are_alike_and_views_are_looked_through() -> None:
    assert tensor_class("model.layers.3.mlp", "MulBackward0") == "model.layers.*.mlp/MulBackward0"
    assert tensor_class("experts.11.w2", "SiluBackward0") == "experts.*.w2/SiluBackward0"
    assert tensor_class("", "AddBackward0") == "AddBackward0"
    x = torch.ones(2, 3, requires_grad=True)
    assert operator_of((x * x).view(3, 2).t()[1:]) == "MulBackward0"
    assert operator_of(x.t()) == operator_of(torch.ones(1)) == "leaf"


def test_the_running_module_is_known_also_after_an_exception() -> None:
    model = tiny_models.transformer(layers=2)
    seen: list[str] = []
    with ModulePaths(model) as paths:
        model.blocks[1].mlp[1].register_forward_hook(lambda *_: seen.append(paths.innermost))
        model(tiny_models.transformer_batch())
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 3, 5))
        assert paths.innermost == ""
        model(tiny_models.transformer_batch())
    assert seen == ["blocks.1.mlp", "blocks.1.mlp"] or seen == ["blocks.1.mlp.1", "blocks.1.mlp.1"]


# Peak


def watched(run: Any, *existing: torch.Tensor) -> int:
    with peak.measured("cpu", existing) as meter:
        run()
    return meter.peak_bytes


def test_the_peak_is_the_most_that_lives_at_once() -> None:
    def run() -> None:
        a = torch.ones(100)  # 400
        b = a * 2  # 800
        c = a + b  # 1200: the peak
        del a, b
        d = c.exp()  # 800
        del c, d

    assert watched(run) == 1200


def test_views_and_writes_in_place_are_no_new_memory_but_keep_the_old() -> None:
    def run() -> None:
        a = torch.ones(100)
        view = a[90:]
        view.mul_(3)
        a.add_(1)
        del a
        torch.ones(50)  # beside the 400 bytes that the view keeps
        del view
        torch.ones(70)

    assert watched(run) == 600


def test_memory_that_the_graph_keeps_lives_until_the_backward_lets_it_go() -> None:
    weight = torch.ones(100, requires_grad=True)

    def run() -> None:
        y = (weight * 2).exp().exp()
        y.sum().backward()

    # Going back through the first exp: the weight, both exps, the gradients on either side; the sum and its
    # own.
    assert watched(run, weight) == 5 * 400 + 2 * 4
    assert watched(lambda: (weight.detach() * 2).exp().exp().sum(), weight) == 3 * 400


def test_memory_from_before_counts_however_late_it_is_seen() -> None:
    old = torch.ones(100)

    def run() -> None:
        a = torch.ones(300)
        del a
        old.sum()

    assert watched(run) == watched(run, old) == 1600


def test_memory_freed_by_another_thread_is_free() -> None:
    import threading

    def run() -> None:
        held = [torch.ones(100)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        torch.ones(100)

    assert watched(run) == 400


def test_what_plays_host_memory_is_not_counted_and_nothing_is_watched_afterwards() -> None:
    def run() -> None:
        host = torch.zeros(4000, dtype=torch.uint8)
        peak.is_host_memory(host)
        host[:40].copy_(torch.ones(10).view(torch.uint8))

    with peak.measured("cpu") as meter:
        torch.ones(3)
        run()
    assert meter.peak_bytes == 40
    after = meter.peak_bytes
    torch.ones(10_000)
    assert meter.peak_bytes == after
