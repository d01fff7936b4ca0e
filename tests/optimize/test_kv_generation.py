"""Keys and values that wait in host memory while a generation goes on: the same logits to the bit."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import tiny_models
from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.kv import generation
from lostflops.optimize.refused import Refused
from simulated_devices import LazyDevice, RaceDevice

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "PIECE", 3000)


def llama() -> Any:
    return tiny_models.llama(6, use_cache=True, tie_word_embeddings=True).eval()


def hybrid() -> Any:
    """Layers with a sliding window of 6 between full ones."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, **heads)).eval()


def prompt(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Padded on the left, each to another length."""
    ids = torch.randint(1, 61, (batch, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    for number in range(batch):
        mask[number, : 2 * number] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def generated(model: Any, past: Any, batch: int = 3, **more: Any) -> Any:
    wanted = {"max_new_tokens": 14, "min_new_tokens": 14, "pad_token_id": 0, "do_sample": False} | more
    found = model.generate(
        **prompt(batch, 9), past_key_values=past, output_logits=True, return_dict_in_generate=True, **wanted
    )
    return [found.sequences.tolist(), [logits.numpy().tobytes() for logits in found.logits]]


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "one": {"batch": 1},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled": {"do_sample": True, "num_return_sequences": 2},
}


@cache
def with_a_dynamic_cache(made: Callable[[], Any], way: str) -> Any:
    """What no device is asked about, so it is the same for all of them."""
    model = made()
    torch.manual_seed(1)
    return generated(model, None, **WAYS[way])


@pytest.mark.parametrize("device", [ThreadedDevice, LazyDevice, RaceDevice])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", [llama, hybrid])
def test_tokens_and_logits_are_those_of_a_dynamic_cache(
    made: Callable[[], Any], way: str, device: Any
) -> None:
    model, expected = made(), with_a_dynamic_cache(made, way)
    for budget in (0, 8_000 if way == "one" else 25_000):
        on = device()
        offloaded = optimize.kv_offload(model, budget, device=on)
        torch.manual_seed(1)
        if isinstance(on, ThreadedDevice):
            found = generated(model, offloaded.past, **WAYS[way])
        else:
            with on:
                found = generated(model, offloaded.past, **WAYS[way])
        assert found == expected
        report = offloaded.report()
        assert report.into.bytes > 0 and report.out.bytes > 0 and report.layers_in_host > 0
        if isinstance(on, RaceDevice):
            assert on.races == [] and on.disagreements == []
        if isinstance(on, LazyDevice):
            assert on.lost == []


def decode(model: Any, past: Any, steps: int, start: int = 0) -> list[bytes]:
    """Tokens given, so that any cache can be compared; the logits."""
    found: list[bytes] = []
    with torch.no_grad():
        for step in range(start, start + steps):
            ids = torch.full((2, 4 if step == 0 else 1), 1 + step % 60)
            found.append(model(input_ids=ids, past_key_values=past, use_cache=True).logits.numpy().tobytes())
    return found


def plain_cache(model: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


@pytest.mark.parametrize("left_out", ["in waits for out", "layer waits for in", "out waits for layer"])
def test_each_wait_that_is_left_out_is_a_race(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, model = RaceDevice(), llama()
    offloaded = optimize.kv_offload(model, 0, device=device)
    wait = device.wait
    streams = {"in": offloaded._in, "out": offloaded._out, "layer": device.compute}
    waiting, _, _, waited_for = left_out.split()

    def forgetful(stream: Any, event: Any) -> None:
        if not (stream is streams[waiting] and event.stream is streams[waited_for]):
            wait(stream, event)

    monkeypatch.setattr(device, "wait", forgetful)
    with device:
        decode(model, offloaded.past, 4)
    assert device.races


def test_as_many_layers_stay_as_the_budget_holds_and_they_leave_one_by_one() -> None:
    model = llama()
    expected = decode(model, plain_cache(model), 30)
    offloaded = optimize.kv_offload(model, 40_000, device=ThreadedDevice())
    away: list[int] = []
    found: list[bytes] = []
    for step in range(30):
        found += decode(model, offloaded.past, 1, step)
        away.append(sum(layer.rows is not None for layer in offloaded.past.layers))
        assert offloaded._device_bytes() <= 40_000 or away[-1] == 6
    assert found == expected
    assert away[0] == 0 and away[-1] > 2 and away == sorted(away)
    places = [n for n, layer in enumerate(offloaded.past.layers) if layer.rows is not None]
    assert places != list(range(len(places))), "between those that stay"
    assert offloaded.report().most_device_bytes <= 40_000


def test_only_what_is_new_goes_out() -> None:
    model = llama()
    offloaded = optimize.kv_offload(model, 0, device=ThreadedDevice())
    decode(model, offloaded.past, 10)
    rows = offloaded.past.layers[0].rows
    assert offloaded.report().out.bytes == 6 * 13 * rows.row.nbytes


@pytest.mark.parametrize("budget", [0, 20_000])
def test_what_is_done_to_the_cache_is_done_to_the_rows_too(budget: int) -> None:
    """Cropped, reordered, repeated, selected, read, written to, and emptied."""

    def changed(past: Any, number: int) -> Any:
        if number == 0:
            past.crop(-2)
        elif number == 1:
            past.reorder_cache(torch.tensor([1, 0]))
        elif number == 2:
            past.crop(-3)
            past.crop(0)
        elif number == 3:
            past.batch_repeat_interleave(2)
            past.batch_select_indices(torch.tensor([1, 2]))
        elif number == 4:
            past.layers[2].keys = past.layers[2].keys * 2
        elif number == 5:
            return [(layer.keys.tolist(), layer.values.stride()) for layer in past.layers]
        elif number == 6:
            past.reset()
        return None

    model, device = llama(), LazyDevice()
    offloaded = optimize.kv_offload(model, budget, device=device)
    plain = plain_cache(model)
    for number in range(7):
        expected = decode(model, plain, 5, number * 5 * (number < 6)), changed(plain, number)
        with device:
            found = (
                decode(model, offloaded.past, 5, number * 5 * (number < 6)),
                changed(offloaded.past, number),
            )
        assert found == expected, number
        assert offloaded.past.get_seq_length() == plain.get_seq_length()
    assert device.lost == []


def test_cropped_rows_are_not_written_over_while_they_are_read() -> None:
    """What was fetched ahead still reads them; without the wait it is a race."""
    for forgets in (False, True):
        device, model = RaceDevice(), llama()
        offloaded = optimize.kv_offload(model, 0, device=device)
        if forgets:
            offloaded.stale = lambda rows: setattr(rows, "fetched", None)  # type: ignore[method-assign]
        with device:
            decode(model, offloaded.past, 4)
            offloaded.past.crop(-4)
            layer = offloaded.past.layers[0]
            offloaded._send(layer, *(torch.ones(2, layer.rows.row.heads, 1, 8) for _ in range(2)))
        assert bool(device.races) == forgets


def test_a_copy_of_the_cache_goes_its_own_way() -> None:
    """On the device, as assisted and contrastive generation copy it; by pickle, too."""
    model = llama()
    offloaded, plain = optimize.kv_offload(model, 0, device=ThreadedDevice()), plain_cache(model)
    found: list[list[bytes]] = []
    for past in (plain, offloaded.past):
        logits = decode(model, past, 3)
        for other in (copy.deepcopy(past), pickle.loads(pickle.dumps(past)), past):
            logits += decode(model, other, 2, 3)
        found.append(logits)
    assert found[0] == found[1] and offloaded.past.layers[0].rows is not None


def test_inference_mode_may_come_and_go() -> None:
    model = llama()
    expected = decode(model, plain_cache(model), 4)
    offloaded = optimize.kv_offload(model, 0, device=ThreadedDevice())
    found: list[bytes] = []
    for step in range(4):
        with torch.inference_mode(step % 2 == 0):
            found += decode(model, offloaded.past, 1, step)
    assert found == expected


def test_undone_in_the_middle_the_generation_goes_on() -> None:
    model = llama()
    expected = decode(model, plain_cache(model), 12)
    with optimize.kv_offload(model, 0, device=ThreadedDevice()) as offloaded:
        found = decode(model, offloaded.past, 6)
    assert all(layer.rows is None for layer in offloaded.past.layers)
    said = offloaded.report()
    assert found + decode(model, offloaded.past, 6, 6) == expected
    assert said.layers_in_host == 6 and offloaded.report().into == said.into


def test_host_memory_that_is_not_allowed_is_refused_and_what_there_was_is_left() -> None:
    model = llama()
    offloaded = optimize.kv_offload(model, 0, host=4000, device=ThreadedDevice())
    with pytest.raises(Refused, match=r"of host memory, and 3\.91 KiB are allowed"):
        decode(model, offloaded.past, 1)
    assert [layer.rows for layer in offloaded.past.layers[2:]] == [None] * 4


def test_what_cannot_be_done_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    model, device = llama(), ThreadedDevice()
    with pytest.raises(Refused, match="has no configuration"):
        optimize.kv_offload(torch.nn.Linear(2, 2), 0, device=device)
    with pytest.raises(Refused, match="there is no GPU memory to spare"):
        optimize.kv_offload(model, 0)
    shares = ThreadedDevice()
    shares.coherent = True
    with pytest.raises(Refused, match="moving frees none"):
        optimize.kv_offload(model, 0, device=shares)
    offloaded = optimize.kv_offload(model, 0, device=device)
    with pytest.raises(Refused, match=r"under torch\.no_grad"):
        model(input_ids=torch.ones(1, 3, dtype=torch.long), past_key_values=offloaded.past)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(Refused, match="is being compiled"), torch.no_grad():
        offloaded.past.update(torch.ones(1, 2, 1, 8), torch.ones(1, 2, 1, 8), 0)
    from transformers import MistralConfig, MistralForCausalLM, T5Config, T5ForConditionalGeneration

    monkeypatch.undo()
    config = T5Config(vocab_size=61, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(Refused, match="keys of its encoder's output"):
        optimize.kv_offload(T5ForConditionalGeneration(config), 0, device=device)
    config = MistralConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, sliding_window=4
    )
    with pytest.raises(Refused, match="has DynamicSlidingWindowLayer, and only"):
        optimize.kv_offload(MistralForCausalLM(config), 0, device=device)


def test_a_model_that_generates_without_a_cache_is_refused() -> None:
    """As it is loaded when it was trained with use_cache=False."""
    model = tiny_models.llama(2).eval()
    assert model.generation_config.use_cache is False
    expected = generated(model, None)
    assert generated(model, plain_cache(model))[0] != expected[0], "transformers' own cache fails, too"
    with pytest.raises(Refused, match="says use_cache=False"):
        optimize.kv_offload(model, 0, device=ThreadedDevice())
    model.generation_config.use_cache = True
    offloaded = optimize.kv_offload(model, 0, device=ThreadedDevice())
    assert generated(model, offloaded.past)[0] == expected[0]


def test_the_report_prints_and_is_json() -> None:
    model = llama()
    offloaded = optimize.kv_offload(model, 100, device=ThreadedDevice())
    decode(model, offloaded.past, 5)
    report = offloaded.report()
    assert (report.batch, report.tokens, report.layers) == (2, 8, 6)
    assert "6 of 6 layers in host memory" in str(report) and "OVER the budget of 100 B" in str(report)
    record = json.loads(json.dumps(report.to_json()))
    assert record["kind"] == "kv offload report" and 0 <= record["into"]["hidden"] <= 1
