"""What every remedy promises, and that findings and remedies know each other."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lostflops import optimize
from lostflops.accounts import ACCOUNTS
from lostflops.causes import MADE, asking_for, shortened_by
from lostflops.causes import remedies as asked_for
from lostflops.errors import NoSuchRemedy
from lostflops.recipes import declared, recipes
from lostflops.remedies import FRAMEWORKS, REMEDIES, THEMES, Remedy, Setting, Snippet, named, near
from lostflops.remedies import __path__ as folder
from lostflops.remedies.snippet import version
from lostflops.replay.edits import edit

SAFETY = ("bit-identical", "numerically close", "changes convergence")
WIDEST = 78  # columns of a line of code, which a terminal of 80 must hold with its margin
KEYS = {key for name in FRAMEWORKS for key in (name, f"{name}/ddp", f"{name}/fsdp")}
SPELLED = [
    pytest.param(snippet, id=f"{remedy.name}-{key}-{number}")
    for remedy in REMEDIES.values()
    for key, change in remedy.changes.items()
    for number, snippet in enumerate(change.snippets)
]


def test_the_remedies_that_a_user_may_look_for_are_there() -> None:
    """Those that the field knows by these names."""
    assert {
        "loader-workers", "pinned-copies", "tokenise-ahead", "bf16", "fp16-scaling", "tf32", "fp8",
        "gradient-accumulation", "bucket-size", "fsdp-prefetch", "fsdp-reshard", "overlap-communication",
        "zero-stage", "hierarchical-partitioning", "checkpoint-activations", "selective-checkpointing",
        "offload-activations", "offload-parameters", "unified-memory", "batch-size", "fused-optimizer",
        "compile", "cuda-graphs", "attention-kernel", "remove-syncs", "gc-freeze", "allocator-settings",
        "pipeline-microbatches", "pipeline-schedule", "stage-balance", "tensor-inside-node",
        "rank-exclusion", "numa-binding", "omp-wait-policy",
    } <= set(REMEDIES)  # fmt: skip


def test_every_finding_has_a_remedy_or_says_why_none_is_known() -> None:
    for name, asked in asked_for().items():
        assert bool(asked.all) != bool(asked.none_known), name
        assert not asked.none_known or asked.none_known.endswith("."), name
        assert len(set(asked.all)) == len(asked.all), name
        assert set(asked.all) <= set(REMEDIES), name


def test_workers_that_are_typed_shuffle_as_before() -> None:
    """Workers that live on draw one random number less: from the second epoch on the order is another."""
    remedy = REMEDIES["loader-workers"]
    assert remedy.safety == "bit-identical" and "shuffles otherwise from the second" in remedy.safe
    for change in remedy.changes.values():
        assert "persistent" not in change.says
        assert not any("persistent" in snippet.text for snippet in change.snippets)


def test_every_remedy_is_recommended_by_something() -> None:
    for remedy in REMEDIES.values():
        recommend = (*asking_for(remedy.name), *shortened_by(remedy.name))
        assert recommend, f"nothing recommends {remedy.name}"
        assert {*asking_for(remedy.name)} <= {*declared(), *MADE}, "findings that a user can meet"
    for account in ACCOUNTS.values():
        assert set(account.remedies) <= set(REMEDIES), account.name


def test_a_job_without_a_gpu_is_told_nothing_that_needs_one() -> None:
    """Of checkpoints and logs: NCCL is not in PyTorch's builds for CPUs, and values lie in no GPU."""
    saves, logs = (REMEDIES[name].changes["pytorch"].says for name in ("async-checkpoint", "log-less"))
    assert 'without a GPU `"gloo"`' in saves and "GPU" not in logs


def test_what_the_page_spells_out_has_words_for_plain_pytorch() -> None:
    for name, asked in asked_for().items():
        for remedy in asked.remedies:
            assert REMEDIES[remedy].changes["pytorch"].says, f"{remedy}, which {name} spells out"


@pytest.mark.parametrize("remedy", list(REMEDIES.values()), ids=lambda remedy: remedy.name)
def test_a_remedy_is_declared_whole(remedy: Remedy) -> None:
    (file,) = Path(folder[0]).rglob(f"{remedy.name.replace('-', '_')}.py")
    assert file.parent.name not in ("remedies", ""), "it stands in the folder of a theme"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", remedy.name)
    assert remedy.safety in SAFETY
    assert remedy.recipe in recipes()
    assert "pytorch" in remedy.changes and set(remedy.changes) <= KEYS
    assert set(remedy.more) <= set(FRAMEWORKS)
    assert remedy.on or not remedy.more
    for text in (remedy.does, remedy.seen, remedy.undo):
        assert text.endswith("."), text
    assert ". " not in remedy.does, "it is one sentence"
    for text in (remedy.when, remedy.safe, remedy.costs, remedy.limits, remedy.note, remedy.unsure):
        assert not text or text.endswith("."), text
    for key, change in remedy.changes.items():
        assert bool(change.snippets) != bool(change.instead), f"{key}: something to type, or why there is not"
        for text in (change.says, change.instead, change.note):
            assert not text or (text.endswith((".", ".)", "`).")) and "  " not in text), f"{key}: {text}"
    if remedy.edit:
        assert edit(remedy.edit).says
    if remedy.helper:
        assert remedy.helper in optimize.__all__
    assert not remedy.is_in_deepspeed_json or any(
        snippet.language == "json" for snippet in remedy.changes["deepspeed"].snippets
    )


@pytest.mark.parametrize("snippet", SPELLED)
def test_a_snippet_can_be_typed(snippet: Snippet) -> None:
    assert snippet.text.strip() and all(len(line) <= WIDEST for line in snippet.text.splitlines())
    for limit in filter(None, (snippet.since, snippet.until)):
        package, number = limit.split()
        assert package in ("torch", "transformers", "accelerate", "deepspeed", "lightning", "torchtitan")
        assert version(number)
    match snippet.language:
        case "json":
            assert isinstance(json.loads(snippet.text), dict)
        case "shell":
            assert shlex.split(snippet.text, comments=True)
        case "python":
            for side in sides(snippet):
                ast.parse(side)


def sides(snippet: Snippet) -> Iterator[str]:
    """The Python before and after a diff; of plain lines these."""
    if not snippet.is_diff:
        yield snippet.text
        return
    lines = snippet.text.splitlines()
    assert all(line[:1] in "+- " for line in lines), "every line of a diff has its mark"
    for other in "+-":
        yield "\n".join(line[1:] for line in lines if not line.startswith(other))


def test_no_snippet_says_what_must_not_be_advised() -> None:
    never = (
        "NCCL_ALGO", "NCCL_PROTO", "CUDA_LAUNCH_BLOCKING", "--cpu-offload-activations", "lock-gpu-clocks",
        "force-load-balanc", "capacity-factor", "torch.cuda.amp",
    )  # fmt: skip
    for remedy in REMEDIES.values():
        for change in remedy.changes.values():
            for snippet in change.snippets:
                assert not [word for word in never if word in snippet.text], remedy.name


def test_spellings_of_one_change_are_for_versions_that_do_not_overlap() -> None:
    """A version takes one of them, so what is typed is never the old and the new together."""
    for remedy in REMEDIES.values():
        for key, change in remedy.changes.items():
            ends = {s.until for s in change.snippets if s.until}
            begins = {s.since for s in change.snippets if s.since}
            assert ends <= begins, f"{remedy.name} {key}: what is it written like from {ends - begins} on?"


def test_a_version_takes_its_spelling() -> None:
    tf32 = REMEDIES["tf32"].changes["pytorch"].snippets
    for number, has in (
        ("2.8.1", "set_float32_matmul_precision"),
        ("2.9", "fp32_precision"),
        ("3.0", "fp32_p"),
    ):
        (one,) = [s for s in tf32 if s.taken_by({"torch": version(number)})]
        assert has in one.text
    unknown = [s.heading for s in tf32 if s.taken_by({"transformers": (5,)})]
    assert unknown == ["from torch 2.9", "before torch 2.9"]


def test_a_framework_without_a_switch_says_so() -> None:
    job = Setting("megatron")
    change = job.change(REMEDIES["compile"])
    assert not change.is_there and "Megatron-LM" in change.instead
    assert not job.is_left(REMEDIES["compile"])
    own = Setting("lightning").change(REMEDIES["tf32"])
    assert own is REMEDIES["tf32"].changes["pytorch"], "the user's own code"


def test_themes_hold_every_remedy_once() -> None:
    assert sorted(name for names in THEMES.values() for name in names) == sorted(REMEDIES)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("loader_workers", "loader-workers"),
        ("BF16", "bf16"),
        ("CUDA graphs", "cuda-graphs"),
    ],
)
def test_a_name_is_found_however_its_words_are_joined(typed: str, meant: str) -> None:
    assert named(typed).name == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("loader-worker", "loader-workers"),
        ("num_workers", "loader-workers"),
        ("checkpointing", "selective-checkpointing"),
        ("expandable_segments", "allocator-settings"),
        ("overlap", "overlap-communication"),
    ],
)
def test_what_is_near_an_unknown_name_is_said(typed: str, meant: str) -> None:
    assert meant in near(typed)
    with pytest.raises(NoSuchRemedy, match=meant):
        named(typed)


def test_nothing_is_near_to_nonsense() -> None:
    assert near("qqqq") == ()
    with pytest.raises(NoSuchRemedy) as said:
        named("qqqq\x1b[31m")
    assert "\x1b" not in str(said.value) and "Near" not in str(said.value)
