"""The offload planner: its simulator, what it decides and why, what it refuses, and its command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops import cli
from lostflops.errors import BadProfile
from lostflops.plan.hardware import LinkCard
from lostflops.plan.offload import class_decisions, saved_profile
from planned import patient
from saved_profiles import profile

RATE = st.floats(1e7, 1e12)
LINK = LinkCard("given", 4e9, 5e9, 1000, 1e9, "given")


def read(content: dict[str, Any]) -> saved_profile.Profile:
    return msgspec.convert(content, saved_profile.Profile)


def planned(
    budget: float, link: LinkCard = LINK, host: int | None = None, **more: Any
) -> class_decisions.OffloadPlan:
    """`budget` as a share of the peak."""
    found = read(profile(**more))
    return class_decisions.plan(found, int(budget * found.peak_bytes), link, host)


def decisions(found: class_decisions.OffloadPlan) -> set[str]:
    return {entry.decision for entry in found.classes}


def test_a_step_that_fits_is_left_alone() -> None:
    found = planned(1.0)
    assert found.refused is not None and found.refused.startswith("it fits as it is: the peak of ")
    assert decisions(found) == {"keep"}
    content = class_decisions.record(found)
    assert content["predicted"]["bytes_out"] == 0
    assert content["predicted"]["step_ns"] == content["predicted"]["without"]["step_ns"]


def test_a_byte_over_the_budget_moves_as_little_as_helps() -> None:
    peak = profile()["peak_bytes"]
    found = class_decisions.plan(read(profile()), peak - 1, LINK)
    assert found.refused is None
    assert [entry.decision for entry in found.classes].count("offload") == 1
    assert found.chosen.played.peak_bytes < peak


@settings(patient, max_examples=30)
@given(
    st.integers(1, 8),
    st.integers(10, 3000),
    st.integers(1, 2000),
    RATE,
    RATE,
    st.lists(st.floats(0.05, 1.1), min_size=3),
)
def test_more_budget_is_never_slower_and_no_plan_is_over_its_budget(
    layers: int, scale: int, head: int, out: float, into: float, shares: list[float]
) -> None:
    content = read(profile(layers=layers, scale=scale, head=head * 1000))
    planning = class_decisions.Planning(content, LinkCard("x", out, into, 500, 1e9, "given"))
    before = None
    for share in sorted(shares):
        budget = int(share * content.peak_bytes)
        found = planning.within(budget)
        played = found.chosen.played
        fits = found.without.peak_bytes <= budget
        if found.refused is None or fits:
            assert played.peak_bytes <= budget
            assert before is None or played.step_ns <= before
            before = played.step_ns
        assert fits == (found.refused or "").startswith("it fits")
        assert (found.refused is None) == (decisions(found) != {"keep"})


Change = Callable[[], class_decisions.OffloadPlan]
TIGHT = 0.45


@pytest.mark.parametrize(
    ("why", "one", "other"),
    [
        ("the rate out", lambda: planned(TIGHT), lambda: planned(TIGHT, slow(out=2e7))),
        ("the rate in", lambda: planned(TIGHT), lambda: planned(TIGHT, slow(into=2e7))),
        ("the start of a copy", lambda: planned(TIGHT), lambda: planned(TIGHT, slow(latency_ns=2_000_000))),
        (
            "the time of the forward",
            lambda: planned(TIGHT, slow(out=1e9), forward=2_000_000),
            lambda: planned(TIGHT, slow(out=1e9), forward=200_000),
        ),
        (
            "the time of the backward",
            lambda: planned(TIGHT, slow(into=1e9), backward=2_000_000),
            lambda: planned(TIGHT, slow(into=1e9), backward=500_000),
        ),
        ("host memory", lambda: planned(TIGHT), lambda: planned(TIGHT, host=2_000_000)),
        ("the budget", lambda: planned(0.97), lambda: planned(TIGHT)),
        ("bytes", lambda: planned(TIGHT, slow(out=1e9)), lambda: planned(TIGHT, slow(out=1e9), scale=20_000)),
    ],
)
def test_every_cost_can_turn_the_decision(why: str, one: Change, other: Change) -> None:
    first, second = one(), other()
    assert first.refused is None and second.refused is None, why
    assert [entry.decision for entry in first.classes] != [entry.decision for entry in second.classes], why
    assert "offload" in decisions(first), why


def slow(**changes: Any) -> LinkCard:
    return msgspec.structs.replace(LINK, **changes)


def test_the_cost_of_computing_again_turns_it_into_moving() -> None:
    """On a link that is waited for: what is saved late in a module makes the module dear to compute again."""
    link = slow(out=3e8, into=3e8)
    found = planned(TIGHT, link)
    assert "recompute" in decisions(found)
    dear = profile()
    for row in dear["rows"]:
        if "mlp/Silu" in row["tensor_class"]:  # the first that the mlp saves, and so its input
            row["pack_ns"] = row["pack_ns"] - 200_000
    dear["rows"].sort(key=lambda row: row["pack_ns"])
    content = read(dear)
    turned = class_decisions.plan(content, int(TIGHT * content.peak_bytes), link)
    assert [e.decision for e in found.classes] != [e.decision for e in turned.classes]


def test_a_module_is_computed_again_as_a_whole_and_its_input_stays() -> None:
    found = planned(TIGHT, slow(out=2e7, into=2e7))
    again = [module.name for module in found.chosen.mix.modules]
    assert again
    for entry in found.classes:
        inside = any(entry.module == name or entry.module.startswith(f"{name}.") for name in again)
        assert (entry.decision == "recompute") == inside
    first = {one.storages[0] for module in found.chosen.mix.modules for one in module.instances}
    assert 0 not in first


# What is refused.


def refusal(found: class_decisions.OffloadPlan) -> str:
    assert found.refused is not None and decisions(found) == {"keep"}
    return found.refused


def test_a_model_alone_over_the_budget_is_refused() -> None:
    text = refusal(planned(0.1, static=5_000_000))
    assert text.startswith("the model alone holds 4.77 MiB, over the budget of ")


def test_a_peak_in_the_logits_is_refused_and_said_to_be_there() -> None:
    text = refusal(planned(0.5, head=9_000_000))
    assert "the smallest peak that was found is " in text and "over the budget" in text
    assert "at the head and the loss" in text and "a fused loss lowers it" in text


def test_a_peak_in_what_the_backward_computes_is_refused_and_said_to_be_there() -> None:
    content = profile()
    late = next(high for high in content["highs"] if high[0] > content["forward_ns"] + 5 * 1_900_000)
    late[1] = content["peak_bytes"] = 20_000_000
    found = read(content)
    text = refusal(class_decisions.plan(found, 15_000_000, LINK))
    assert "in the backward of 'model.layers." in text


def test_too_little_host_memory_is_refused_with_what_would_be_needed() -> None:
    content = profile()
    for row in content["rows"]:
        row["module"] = row["tensor_class"] = "body"
    found = read(content)
    text = refusal(class_decisions.plan(found, found.peak_bytes // 2, LINK, 1000))
    assert text.startswith("host memory is too small: ") and "1,000 B is there" in text


def test_without_layers_nothing_can_be_computed_again_and_that_is_said() -> None:
    content = profile()
    for row in content["rows"]:
        row["module"] = row["tensor_class"] = "body"
    found = read(content)
    assert "no repeated layers are named" in refusal(class_decisions.plan(found, 60_000, LINK))
    assert class_decisions.plan(found, found.peak_bytes // 2, LINK).refused is None


def test_without_memory_over_time_the_peak_is_less_sure() -> None:
    found = read(profile(highs=None))
    plan = class_decisions.plan(found, found.peak_bytes // 2, LINK)
    assert plan.without.peak_bytes == found.peak_bytes
    assert plan.peak_error > class_decisions.plan(read(profile()), found.peak_bytes // 2, LINK).peak_error


def test_parameters_and_small_storages_stay() -> None:
    content = profile()
    content["rows"][1]["kept_reason"] = "parameter"
    found = read(content)
    plan = class_decisions.plan(found, found.peak_bytes // 3, slow(latency_ns=30_000))  # 120 kB to start
    moved = [
        plan.profile.in_order[n] for n in class_decisions.Planning(found, plan.link)._moved(plan.chosen.mix)
    ]
    assert moved and all(row.bytes >= 120_000 and not row.kept_reason for row in moved)


# The command.


def written(folder: Path, content: Any) -> str:
    file = folder / "profile.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def test_the_command_prints_a_plan_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plan = written(tmp_path, profile()), tmp_path / "plan.json"
    words = ["plan", "offload", "--profile", file, "--budget", "5 MB", "--link", "c2c", "--json", str(plan)]
    assert cli.main(words) == cli.ANSWERED
    text = capsys.readouterr().out
    assert "A plan for 4.77 MiB" in text and "mlp/SiluBackward0" in text and "predicted" in text
    assert "lostflops.optimize." in text
    content = json.loads(plan.read_text())
    assert content["kind"] == "offload plan" and content["schema"] == 1 and content["refused"] is None
    assert set(content["classes"]) == {row["tensor_class"] for row in profile()["rows"]}
    assert content["predicted"]["peak_bytes"] <= content["budget_bytes"] == 5_000_000
    assert cli.main([*words[:-1], "-"]) == cli.ANSWERED
    assert json.loads(capsys.readouterr().out) == content


def test_the_command_says_that_a_step_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, profile())
    assert cli.main(["plan", "offload", "--profile", file, "--budget", "70 GiB"]) == cli.ANSWERED
    assert "No plan: it fits as it is" in capsys.readouterr().out


def with_row(**changes: Any) -> dict[str, Any]:
    content = profile(layers=1)
    content["rows"][1] |= changes
    return content


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "truncated"),
        (json.dumps(profile())[:-40], "not a profile of saved tensors"),
        ("[" * 100_000, "not a profile of saved tensors"),
        ("[]", "object"),
        ({}, "missing required field"),
        (profile(schema=2), "Invalid"),
        (profile(kind="offload plan"), "Invalid"),
        (profile(forward_ns=-1), ">= 1"),
        (profile(backward_ns=10**30), "not a profile of saved tensors"),
        (profile(peak_bytes=7), "below the 50,000 of the model"),
        (profile(rows=[]), "it has no rows"),
        (json.dumps(profile()).replace("100000", "NaN", 1), "malformed"),
        (with_row(bytes=-5), ">= 0"),
        (with_row(bytes=1.5), "int"),
        (with_row(bytes=1 << 60), "<= 1125899906842624"),
        (with_row(storage=0), "two rows are of one storage"),
        (with_row(pack_ns=10**9), "saved after the forward has ended"),
        (with_row(unpack_ns=10**9), "outside of the step"),
        (with_row(tensor_class="x" * 5000), "not a profile of saved tensors"),
        (with_row(covered_fraction=2), "not a profile of saved tensors"),
        (profile(highs=[[5, 1], [3, 2]]), "not in order"),
    ],
)
def test_what_is_no_profile_is_refused_in_words(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(BadProfile) as error:
        saved_profile.read(Path(written(tmp_path, content)))
    assert says in str(error.value) and "saved_tensors(model, batch)" in error.value.hint
    assert len(str(error.value)) < 700


def test_names_from_a_profile_cannot_write_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = profile(model="\x1b[31mred\nline")
    for row in content["rows"]:
        row["tensor_class"] = row["tensor_class"].replace("mlp", "m\x1b[2J\rlp")
        row["module"] = row["module"].replace("mlp", "m\x1b[2J\rlp")
    for budget in ("5 MB", "20 kB", "1 MB"):
        cli.main(["plan", "offload", "--profile", written(tmp_path, content), "--budget", budget])
        assert "\x1b" not in capsys.readouterr().out
