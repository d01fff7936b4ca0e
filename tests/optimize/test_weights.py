"""Weights that travel leave what is generated as it is, and the time of a pass is the predicted one."""

from __future__ import annotations

import re
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.copies.streamed_weights import (
    break_even_tokens,
    streaming_knee,
    streaming_prediction,
    streaming_sweep,
)
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.whole_model import measured_sweep, stream_weights
from no_host import NoHost
from simulated_devices import ClockDevice

torch.set_num_threads(1)
TOKENS = 6


class Throttled(ThreadedDevice):
    """A link of so many bytes per second."""

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__()
        self.bytes_per_second = bytes_per_second

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        def slow() -> None:
            began = time.perf_counter()
            target.copy_(source)
            time.sleep(max(0.0, target.numel() / self.bytes_per_second - (time.perf_counter() - began)))

        stream.put(slow)


@cache
def mixtral() -> Any:
    """Four experts a layer, two of them for each token."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return MixtralForCausalLM(config).eval()


@cache
def llama() -> Any:
    return tiny_models.llama(6, use_cache=True, tie_word_embeddings=True).eval()


def generated(model: Any, **more: Any) -> torch.Tensor:
    torch.manual_seed(1)
    ids = torch.randint(1, 61, (2, 9))
    wanted = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **wanted, **more)


def whole(model: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("made", [llama, mixtral])
def test_greedy_generation_is_the_same_bit_by_bit(made: Any) -> None:
    model = made()
    expected = generated(model)
    budget = whole(model) * 6 // 10
    with stream_weights(model, budget, device=ThreadedDevice()) as streamed, NoHost():
        assert torch.equal(generated(model), expected)
        with torch.inference_mode():
            assert torch.equal(generated(model), expected)
        logits = generated(model, return_dict_in_generate=True, output_logits=True).logits
    report = streamed.report()
    assert report.layers_streamed >= 3 and report.layers_never_used == []
    assert report.bytes_in >= 3 * TOKENS * report.streamed_bytes
    assert report.bytes_out == 0 and report.device_bytes_max <= budget
    assert report.stalls["order missed"] == 0
    plain = generated(model, return_dict_in_generate=True, output_logits=True).logits
    assert all(torch.equal(a, b) for a, b in zip(logits, plain, strict=True))


class Routed(nn.Module):
    """Each row goes to one expert: the others are not called."""

    def __init__(self, experts: int = 6) -> None:
        super().__init__()
        self.router = nn.Linear(32, experts)
        self.experts = nn.ModuleList([nn.Linear(32, 32) for _ in range(experts)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            out[chosen == number] = self.experts[number](x[chosen == number])
        return x + out


def test_experts_that_are_called_or_not_are_fetched_when_they_are() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(*(Routed() for _ in range(3)))
    experts = [expert for part in model for expert in part.experts]  # pyright: ignore[reportGeneralTypeIssues]
    batches = [torch.randn(4, 32) for _ in range(8)]
    with torch.no_grad():
        expected = [model(batch) for batch in batches]
    with stream_weights(model, 20_000, device=ThreadedDevice(), layers=experts) as streamed:
        with torch.no_grad(), NoHost():
            found = [model(batch) for batch in batches]
        report = streamed.report()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert report.layers_streamed >= 12 and report.stalls["order missed"] > 3
    assert report.device_bytes_max <= 20_000


def test_slots_stay_where_they_are() -> None:
    model = llama()
    addresses: set[int] = set()

    def look(module: Any, *_: Any) -> None:
        addresses.add(module.weight.untyped_storage().data_ptr())

    hooks = [layer.mlp.up_proj.register_forward_pre_hook(look) for layer in model.model.layers]
    with stream_weights(model, whole(model) * 6 // 10, device=ThreadedDevice()) as streamed:
        generated(model)
        slots = {slot.memory.data_ptr() for slot in streamed._slots.slots}
        assert len(slots) == 2 and len(addresses) == 2 + len(streamed.placement.staying)
        assert slots <= addresses
    for hook in hooks:
        hook.remove()


def test_gradients_are_refused() -> None:
    model = tiny_models.transformer(6)
    x = tiny_models.transformer_batch()
    with stream_weights(model, whole(model) // 2, device=ThreadedDevice()):
        with pytest.raises(Refused, match="streamed for inference, and gradients are on"):
            model(x)
        with torch.no_grad():
            model(x)
    assert all(parameter.requires_grad for parameter in model.parameters())
    model(x).sum().backward()
    with pytest.raises(Refused, match="budget of"):
        stream_weights(model, 100, device=ThreadedDevice())


# Predictions


def test_published_sizes_give_published_times() -> None:
    """70B in 16 bits with 66 GB streamed: 1.2 s a token at 55 GB/s, 0.18 s at 375."""
    pcie, c2c = (
        streaming_prediction(140 * 10**9, 74 * 10**9, rate, compute_seconds=0.03) for rate in (55e9, 375e9)
    )
    assert pcie.streamed_bytes == 66 * 10**9
    assert round(pcie.seconds, 2) == 1.20 and round(c2c.seconds, 3) == 0.176
    assert pcie.bound_by == "link"
    assert round(pcie.break_even_tokens) == 8182 and round(c2c.break_even_tokens) == 1200
    assert break_even_tokens(55e9, bytes_per_parameter=0.5) == pytest.approx(8182 / 4, rel=1e-3)


def test_what_fits_waits_for_nothing() -> None:
    fits = streaming_prediction("10 GB", "12 GB", 1e9, compute_seconds=0.5, fixed_seconds=0.25, batch=3)
    assert (fits.streamed_bytes, fits.link_seconds, fits.bound_by) == (0, 0, "compute")
    assert fits.seconds == 0.75 and fits.tokens_per_second == 4
    with pytest.raises(Refused, match="moves nothing"):
        streaming_prediction(1, 1, 0, compute_seconds=1)


@given(
    st.integers(1, 10**12),
    st.floats(1e6, 1e12),
    st.floats(1e-4, 10),
    st.integers(2, 30),
    st.integers(0, 10**9),
)
@settings(deadline=None, max_examples=150)
def test_more_budget_is_never_slower_and_nothing_is_gained_above_the_knee(
    weights: int, rate: float, compute: float, points: int, slots: int
) -> None:
    slots = min(slots, weights)
    rows = streaming_sweep(weights, rate, compute_seconds=compute, points=points, slot_bytes=slots)
    knee = streaming_knee(weights, rate, compute_seconds=compute, slot_bytes=slots)
    assert rows[0].budget_bytes == 0 and rows[-1].budget_bytes == weights
    for less, more in pairwise(rows):
        assert less.budget_bytes < more.budget_bytes and less.seconds >= more.seconds
    for row in rows:
        fastest = row.seconds == pytest.approx(compute, rel=1e-6, abs=2 / rate)
        assert fastest == (row.budget_bytes >= knee) or row.seconds - compute < 2 / rate


def test_tokens_per_second_are_as_predicted_on_a_link_of_known_rate() -> None:
    """Sleeps stand for the link; the compute is measured without streaming."""
    model = llama()
    generated(model)
    start = time.perf_counter()
    generated(model)
    compute = (time.perf_counter() - start) / TOKENS
    budget = whole(model) * 6 // 10
    device = Throttled(1e9)
    with stream_weights(model, budget, device=device) as streamed:
        generated(model)  # learns the order
        place = streamed.placement
        travelling = sum(layer.nbytes for layer in place.travelling)
        link = device.bytes_per_second = travelling / max(0.1, 10 * compute)
        predicted = streaming_prediction(
            travelling + place.resident_bytes,
            place.device_bytes,
            link,
            compute_seconds=compute,
            slot_bytes=place.slots * place.slot_bytes,
        )
        for _ in range(4):  # other programs make it slower now and then, nothing makes it faster
            start = time.perf_counter()
            generated(model)
            measured = TOKENS / (time.perf_counter() - start)
            if measured == pytest.approx(predicted.tokens_per_second, rel=0.1):
                break
    assert predicted.bound_by == "link" and predicted.streamed_bytes == travelling
    assert measured == pytest.approx(predicted.tokens_per_second, rel=0.1)


def test_the_budget_sweep_measures_what_is_predicted_in_virtual_time() -> None:
    """8 equal layers, each computing 3,000 ns, over links that are slower and faster."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(8)))
    layer, compute = 4096, 3000
    x = torch.randn(1, 32)
    for stay in (0, 1, 3, 5):
        for rate in (0.5, 1.0, 4.0):
            device = ClockDevice(lambda _, nbytes: compute if nbytes > layer else 0, rate, rate)
            budget = (2 + stay) * layer
            with device, stream_weights(model, budget, device=device) as streamed, torch.no_grad():
                for _ in range(2):
                    model(x)
                begin = device.compute.time
                for _ in range(10):
                    model(x)
                measured = (device.compute.time - begin) / 10
                place = streamed.placement
            predicted = streaming_prediction(
                8 * layer,
                budget,
                rate * 1e9,
                compute_seconds=8 * compute / 1e9,
                slot_bytes=place.slots * place.slot_bytes,
            )
            if rate == 4.0:  # the link is faster than compute wherever two travelling layers meet
                assert predicted.bound_by == "compute"
            assert measured == pytest.approx(1e9 * predicted.seconds, rel=0.1), (stay, rate)


def test_a_sweep_is_measured_and_plain() -> None:
    model = tiny_models.transformer(6)
    x = tiny_models.transformer_batch()
    rows = measured_sweep(model, lambda: model(x), ["150 KiB", "10 MiB"], repeats=1, device=ThreadedDevice())
    assert [row["budget_bytes"] for row in rows] == [150 * 1024, 10 * 2**20]
    assert rows[0]["report"]["bytes_in"] > 0 == rows[1]["report"]["bytes_in"]
    assert all(row["seconds"] > 0 for row in rows)


def test_it_is_there_by_name() -> None:
    assert optimize.stream_weights is stream_weights
    assert optimize.streaming_prediction is streaming_prediction


# The page

PAGE = Path(__file__).parents[2] / "docs" / "optimize/weight-streaming.md"
LINKS = {"PCIe 4, 25 GB/s": 25e9, "PCIe 5, 55 GB/s": 55e9, "NVLink-C2C, 375 GB/s": 375e9}


def tokens_table() -> str:
    lines = ["| link, host to device | 16 bits | 8 bits | 4 bits |", "| --- | --- | --- | --- |"]
    for name, rate in LINKS.items():
        tokens = (break_even_tokens(rate, bytes_per_parameter=width) for width in (2, 1, 0.5))
        lines.append(f"| {name} | {' | '.join(f'{each:,.0f}' for each in tokens)} |")
    return "\n".join(lines)


def budgets_table() -> str:
    lines = ["| budget | tokens/s at 55 GB/s | at 375 GB/s |", "| --- | --- | --- |"]
    slow, fast = (
        streaming_sweep("140 GB", rate, compute_seconds=0.03, points=8, slot_bytes=3_500_000_000)
        for rate in (55e9, 375e9)
    )
    found = {row.budget_bytes: [row, None] for row in slow}
    for row in fast:
        found.setdefault(row.budget_bytes, [None, None])[1] = row
    for budget, rows in sorted(found.items()):
        if budget:
            cells = (f"{row.tokens_per_second:.2f}, {row.bound_by}" if row else "" for row in rows)
            lines.append(f"| {budget / 1e9:.1f} GB | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_page_has_the_tables_of_the_formulas() -> None:
    assert tokens_table() in PAGE.read_text()
    assert budgets_table() in PAGE.read_text()


def masked(text: str) -> list[str]:
    """Without the times, which differ from run to run, nor whether a copy was late."""
    lines = (re.sub(r" +", " ", line).strip() for line in text.strip().splitlines())
    lines = [line.split(" in ")[0] if line.startswith("copies") else line for line in lines if timeless(line)]
    return [line.split(" read,")[0] if line.startswith("from files") else line for line in lines]


def timeless(line: str) -> bool:
    return not line.startswith(("hidden", "stalls"))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_page_shows_what_its_code_prints(
    number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[number]
    scope: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    if number == 2:  # goes on with the model of the one before
        exec(code[1], scope)
    capsys.readouterr()
    exec(code[number], scope)
    assert masked(capsys.readouterr().out) == masked(shown)
