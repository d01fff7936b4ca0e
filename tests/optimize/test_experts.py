"""Of a mixture only the chosen experts travel, and what is generated is the same to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.slots import Slots
from simulated_devices import LazyDevice, RaceDevice
from test_weights import generated

torch.set_num_threads(1)
EXPERTS, CHOSEN = 8, 2


def mixture(kind: str = "mixtral", implementation: str | None = None) -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "num_experts_per_tok": CHOSEN}
    if kind == "mixtral":
        config: Any = MixtralConfig(**sizes, **more, intermediate_size=48, num_local_experts=EXPERTS)
        model: Any = MixtralForCausalLM(config)
    else:
        config = Qwen3MoeConfig(**sizes, **more, moe_intermediate_size=48, num_experts=EXPERTS, head_dim=8)
        model = Qwen3MoeForCausalLM(config)
    if implementation:
        model.set_experts_implementation(implementation)
    return model.eval()


@pytest.mark.parametrize("device", [ThreadedDevice, LazyDevice, RaceDevice])
@pytest.mark.parametrize("implementation", [None, "eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("kind", ["mixtral", "qwen3"])
def test_what_is_generated_is_the_same_to_the_bit(kind: str, implementation: Any, device: Any) -> None:
    model = mixture(kind, implementation)
    expected = generated(model)
    on = device()
    with optimize.stream_weights(model, device=on, experts=True) as streamed:
        if device is ThreadedDevice:
            found = generated(model)
        else:
            with on:
                found = generated(model)
        report = streamed.report()
    assert torch.equal(found, expected)
    assert report.layers_streamed == 10
    assert device is RaceDevice or report.stalls["router"] > 0
    if device is RaceDevice:
        assert on.races == [] and on.disagreements == []
    if device is LazyDevice:
        assert on.lost == []


def test_what_was_not_chosen_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NaN in every slot, where only what is chosen is written over, nothing changes."""
    made = Slots.__init__

    def poisoned(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        for slot in self.slots:
            slot.memory.fill_(0xFF)

    monkeypatch.setattr(Slots, "__init__", poisoned)
    for implementation in ("eager", "batched_mm", "grouped_mm"):
        model = mixture(implementation=implementation)
        expected = generated(model)
        with optimize.stream_weights(model, device=ThreadedDevice(), experts=True):
            assert torch.equal(generated(model), expected)


def one_token(model: Any, number: int) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[number]]), use_cache=False).logits


def test_a_token_fetches_as_many_experts_as_it_is_sent_to() -> None:
    model = mixture()
    experts = [layer.mlp.experts for layer in model.model.layers]
    each = sum(weight[0].nbytes for weight in experts[0].parameters())
    rest = sum(w.nbytes for n, w in model.model.layers.named_parameters() if ".experts." not in n)
    with optimize.stream_weights(model, device=ThreadedDevice(), experts=True) as streamed:
        for number in range(1, 7):
            one_token(model, number)
        moved = streamed.report().bytes_in
    assert moved <= 6 * (5 * CHOSEN * each) + 8 * rest
    with optimize.stream_weights(model, device=ThreadedDevice()) as streamed:
        for number in range(1, 7):
            one_token(model, number)
        assert streamed.report().bytes_in > 2.5 * moved


def test_what_a_slot_still_has_is_not_fetched_again_and_what_was_written_is() -> None:
    model = mixture()
    experts = model.model.layers[2].mlp.experts
    x, shares = torch.randn(3, 32), torch.full((3, 2), 0.5)

    def run(chosen: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            return experts(x, torch.tensor(chosen), shares)

    given = [[[1, 3], [3, 5], [1, 5]], [[1, 3], [3, 1], [5, 3]], [[1, 3], [3, 7], [5, 3]]]
    expected = [run(chosen) for chosen in given]
    each = sum(weight[0].nbytes for weight in experts.parameters())
    with optimize.stream_weights(model, device=ThreadedDevice(), experts=True) as streamed:
        moved = 0
        for chosen, wanted, more in zip(given, expected, (3, 0, 1), strict=True):
            assert torch.equal(run(chosen), wanted)
            moved += more * each
            assert streamed.report().bytes_in == moved
        with torch.no_grad():
            experts.down_proj.mul_(-3)
        changed = run(given[0])
        assert streamed.report().bytes_in == moved + 3 * each
    assert torch.equal(run(given[0]), changed) and not torch.equal(changed, expected[0])


@pytest.mark.parametrize("left_out", ["copy waits", "layer waits"])
def test_each_wait_that_is_left_out_is_a_race(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, model = RaceDevice(), mixture()
    streamed = optimize.stream_weights(model, device=device, experts=True)
    slots: Any = streamed._slots
    wait, parts = device.wait, slots.use_parts
    inside: list[int] = []

    def noted(*args: Any) -> Any:
        inside.append(1)
        try:
            return parts(*args)
        finally:
            inside.pop()

    def forgetful(stream: Any, event: Any) -> None:
        copies = stream is slots._copies
        if not (inside and copies == (left_out == "copy waits")):
            wait(stream, event)

    monkeypatch.setattr(slots, "use_parts", noted)
    monkeypatch.setattr(device, "wait", forgetful)
    with device:
        generated(model)
    assert device.races


def test_what_cannot_be_done_is_refused_in_words(tmp_path: Any) -> None:
    with pytest.raises(Refused, match="no module that has all experts of a layer in one tensor"):
        optimize.stream_weights(tiny_models.llama().eval(), device=ThreadedDevice(), experts=True)
    with pytest.raises(Refused, match="from files layers come as a whole"):
        optimize.stream_weights(mixture(), device=ThreadedDevice(), experts=True, files=tmp_path)
    streamed = optimize.stream_weights(mixture(), device=ThreadedDevice(), experts=True)
    with pytest.raises(Refused, match="gradients are on"):
        streamed.model(input_ids=torch.tensor([[1]]))


def test_a_budget_in_which_some_stay_is_exact_too() -> None:
    model = mixture()
    expected = generated(model)
    whole = sum(weight.nbytes for weight in model.parameters())
    with optimize.stream_weights(model, int(0.9 * whole), device=ThreadedDevice(), experts=True) as streamed:
        assert torch.equal(generated(model), expected)
        report = streamed.report()
    assert report.layers_resident > 0 and report.device_bytes_max <= 0.9 * whole
    assert isinstance(model.model.layers[0].mlp.experts.down_proj, nn.Parameter)
