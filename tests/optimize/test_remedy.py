"""All remedies are put in force, taken back and reported on in one way, and leave nothing behind."""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.integrations import remedies
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy, Report

Made = Callable[[Any], AppliedRemedy]


def frozen(model: nn.Module) -> nn.Module:
    """All but the last parameter, so that there is something to train."""
    *rest, _ = model.parameters()
    for parameter in rest:
        parameter.requires_grad_(False)
    return model


def fp16(model: nn.Module) -> AppliedRemedy:
    return optimize.to_fp16(model, torch.optim.SGD(model.parameters(), lr=0.1))


REMEDIES: dict[str, tuple[Callable[[], nn.Module], Made]] = {
    "offload": (
        tiny_models.llama,
        lambda m: optimize.offload(m, plan="everything", threshold=1, device=ThreadedDevice()),
    ),
    "checkpoint": (tiny_models.llama, optimize.checkpoint),
    "stream_frozen": (
        lambda: frozen(tiny_models.llama()),
        lambda m: optimize.stream_frozen(m, device=ThreadedDevice()),
    ),
    "stream_weights": (
        tiny_models.llama,
        lambda m: optimize.stream_weights(m.eval(), "120 KiB", device=ThreadedDevice()),
    ),
    "autocast": (tiny_models.llama, optimize.autocast),
    "fp16": (tiny_models.llama, fp16),
    "FP8": (tiny_models.llama, lambda m: optimize.to_fp8(m, emulate=True, small=True)),
    "LoRA": (tiny_models.llama, lambda m: optimize.lora(m, 4, ["q_proj"])),
}


def behaviour(model: Any) -> list[Any]:
    """Loss and gradients, to the bit."""
    model.zero_grad()
    batch = tiny_models.llama_batch()
    loss = model(**batch).loss
    if loss.requires_grad:
        loss.backward()
    gradients = {n: p.grad.numpy().tobytes() for n, p in model.named_parameters() if p.grad is not None}
    return [loss.detach().numpy().tobytes(), gradients]


@pytest.mark.parametrize("name", REMEDIES)
def test_what_is_undone_is_as_if_it_had_never_been(name: str) -> None:
    make, remedy = REMEDIES[name]
    torch.manual_seed(0)
    model: Any = make()
    plain = copy.deepcopy(model)
    if name == "stream_weights":
        plain.eval()
    expected = behaviour(plain)
    made = remedy(model)
    with made as entered:
        assert entered is made and made.apply() is made if name != "offload" else entered is made
        with torch.no_grad() if name == "stream_weights" else torch.enable_grad():
            loss = model(**tiny_models.llama_batch()).loss
        if loss.requires_grad:
            loss.backward()
    assert behaviour(model) == expected
    assert {n: type(m) for n, m in model.named_modules()} == {n: type(m) for n, m in plain.named_modules()}
    made.undo()  # once is enough, and twice no harm
    assert behaviour(model) == expected


def test_remedies_of_the_same_layers_leave_nothing_whichever_is_undone_first() -> None:
    """What is left of one that lay under another would be in no file that anybody can read."""
    model = frozen(tiny_models.llama())
    streaming = optimize.stream_frozen(model, device=ThreadedDevice())
    checkpointed = optimize.checkpoint(model)
    again = optimize.autocast(model)
    for each in (streaming, again, checkpointed):
        each.undo()
    assert not [name for name, module in model.named_modules() if "forward" in vars(module)]
    torch.save(model, io.BytesIO())


@pytest.mark.parametrize("name", ["offload", "checkpoint", "stream_frozen", "stream_weights", "autocast"])
@pytest.mark.filterwarnings("ignore:the model computes in")
def test_a_file_of_the_model_is_without_the_remedy_and_needs_nothing_of_ours(name: str) -> None:
    make, remedy = REMEDIES[name]
    torch.manual_seed(0)
    model: Any = make()
    plain = copy.deepcopy(model)
    if name == "stream_weights":
        plain.eval()
    expected = behaviour(plain)
    file, late = io.BytesIO(), io.BytesIO()
    with remedy(model):
        torch.save(model, file)
        with torch.no_grad():
            in_force = model(**tiny_models.llama_batch()).loss
            torch.save(model, late)
            assert torch.equal(model(**tiny_models.llama_batch()).loss, in_force), "the model goes on"
    for each in (file, late):
        assert b"lostflops" not in each.getvalue().replace(b"_lostflops_autocast", b"")
        assert behaviour(torch.load(io.BytesIO(each.getvalue()), weights_only=False)) == expected


def test_a_file_of_a_model_under_autocast_is_said_to_compute_in_fp32() -> None:
    model = nn.Linear(4, 4)
    remedy = optimize.autocast(model)
    with pytest.warns(UserWarning, match="computes in bfloat16 by optimize, and what is saved or sent"):
        pickle.dumps(model)
    twin = copy.deepcopy(model)  # which computes in bf16 as well, and says so
    assert twin(torch.ones(4)).dtype == torch.bfloat16
    with pytest.warns(UserWarning, match="apply it again"):
        pickle.dumps(twin)
    remedy.undo()
    with warnings.catch_warnings(action="error"):
        pickle.dumps(model)


@pytest.mark.parametrize("name", REMEDIES)
def test_a_report_prints_and_is_json_with_its_kind(name: str) -> None:
    make, remedy = REMEDIES[name]
    made = remedy(make())
    made.undo()
    report = made.report()
    assert isinstance(report, Report)
    record = json.loads(json.dumps(report.to_json()))
    assert record["schema"] == 1 and record["kind"].endswith("report")
    assert len(str(report).splitlines()) > 0 and remedies.plain(report) == report.to_json()


def test_what_was_undone_is_made_anew_but_the_engine_may_be_entered_again() -> None:
    for name, (make, remedy) in REMEDIES.items():
        model = make()
        made = remedy(model)
        made.undo()
        if name == "offload":
            made.apply()
            made.undo()
            continue
        with pytest.raises(Refused, match="has been undone"):
            made.apply()


def test_by_call_is_the_same_as_by_context() -> None:
    model = tiny_models.llama()
    expected = behaviour(model)
    engine = optimize.offload(model, plan="everything", threshold=1, device=ThreadedDevice())
    engine.apply()
    assert behaviour(model) == expected
    engine.undo()
    moved = engine.report().out.bytes
    assert moved > 0 and behaviour(model) == expected and engine.report().out.bytes == moved


def test_the_json_of_a_report_has_its_rates() -> None:
    model = tiny_models.llama()
    with optimize.offload(model, plan="everything", threshold=1, device=ThreadedDevice()) as engine:
        for _ in range(3):
            behaviour(model)
    record = remedies.plain(engine.report())
    assert record["out"]["bytes_per_second"] == engine.report().out.bytes_per_second > 0
    assert 0 <= record["out"]["hidden"] <= 1


def test_a_cache_of_dialogues_gives_its_memory_back() -> None:
    cache = optimize.DialogueCache("1 MiB", device=ThreadedDevice())
    keys = [(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))]
    cache.suspend("a", keys, [1, 2, 3, 4, 5])
    assert cache.dialogues == {"a": 5}
    cache.undo()
    assert cache.dialogues == {} and cache.report().suspends == 1
    assert cache.report().to_json()["kind"] == "kv cache report"
    with pytest.raises(Refused, match="has been undone"):
        cache.suspend("a", keys, [1, 2, 3, 4, 5])
