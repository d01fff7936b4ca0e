"""`lostflops remedy`: what it lists, prints and refuses, and what its JSON holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.cli import main
from lostflops.errors import BadOption, NoSuchRemedy
from lostflops.naming.framework_names import ALSO
from lostflops.naming.framework_names import NAMES as OFFERED
from lostflops.remedies import FRAMEWORKS, REMEDIES, THEMES
from made_runs import LOADER, THREAD, Job, Work, made

RUNS = Path(__file__).parents[2] / "examples/runs"
LORA = str(RUNS / "lora-workers-0")
KEYS = {
    "name", "does", "theme", "findings", "accounts", "safety", "framework", "told_by", "is_on",
    "is_possible", "changes", "when", "why_safe", "costs", "limits", "undo", "seen", "recipe", "edit",
    "helper",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["remedy", *words]) == 0
    return capsys.readouterr().out


def test_every_remedy_is_listed_under_its_theme(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == [*THEMES]
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [*REMEDIES]


def test_a_list_for_a_framework_leaves_out_what_it_cannot_change(capsys: pytest.CaptureFixture[str]) -> None:
    for_megatron = printed(capsys, "--for", "megatron-lm")
    assert "  compile " not in for_megatron and "  cuda-graphs " in for_megatron
    assert "  compile " in printed(capsys, "--for", "hf")


def test_a_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed(capsys, "--json", "-"))["remedies"]
    assert [one["name"] for one in listed] == [*REMEDIES]
    assert set(listed[0]) == {"name", "does", "theme", "findings", "accounts", "safety"}
    assert all(one["findings"] or one["accounts"] for one in listed)


@pytest.mark.parametrize("word", [*OFFERED, *ALSO])
def test_every_name_of_a_framework_shows_its_change_alone(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, "bf16", "--for", word.upper())
    key = OFFERED[ALSO.get(word, word)]
    shown = [name for name in FRAMEWORKS.values() if re.search(rf"^{re.escape(name)}(?: with|$)", said, re.M)]
    assert shown == [FRAMEWORKS[key]]
    assert REMEDIES["bf16"].changes[key].snippets[0].text.splitlines()[-1] in said


def test_without_a_framework_all_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "bf16")
    assert all(re.search(rf"^{re.escape(name)}$", said, re.M) for name in FRAMEWORKS.values())
    assert said.index("\nPyTorch\n") < said.index("\nHugging Face Trainer\n") < said.index("\ntorchtitan\n")


@pytest.mark.parametrize("name", REMEDIES)
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_remedy_can_be_printed(
    name: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    said = printed(capsys, name)
    assert (
        REMEDIES[name].safety in said
        and f"lostflops recipe {REMEDIES[name].recipe.replace('_', '-')}" in said
    )
    for change in REMEDIES[name].changes.values():
        for snippet in change.snippets:
            assert all(f"    {line}".rstrip() in said.splitlines() for line in snippet.text.splitlines())


def test_for_a_run_the_commands_work_when_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "loader-workers", LORA)
    assert "Framework: unknown; nothing in the recording tells it." in said
    commands = re.findall(r"lostflops ((?:recipe|whatif) .*)$", said, re.M)
    assert len(commands) == 2 and all(LORA in command for command in commands)
    for command in commands:
        assert main(command.split()) == 0


def hf_run(folder: Path, **ranks: Any) -> str:
    tables = Job(transfer=0).run([[Work(loads=30)]] * 4)
    name = "transformers/trainer.py(2100): train"
    tables["frames"] = [{"start": 1, "end": 9, "thread": THREAD, "name": name}]
    tables["ranks"] = [row | ranks for row in tables["ranks"]]
    made(folder, tables)
    return str(folder)


def test_the_framework_of_the_run_decides(tmp_path: Path) -> None:
    run = lostflops.open(hf_run(tmp_path / "run"))
    said = str(lostflops.remedy("loader-workers", run))
    assert "Framework: Hugging Face Trainer; 'transformers/trainer.py: train' is in the recording." in said
    assert "dataloader_num_workers=4)" in said and "DataLoader(dataset" not in said
    other = str(lostflops.remedy("loader-workers", run, framework="torchtitan"))
    assert "config.dataloader.num_workers = 4" in other and "TrainingArguments" not in other


def test_a_framework_without_a_switch_sends_to_the_users_own_code(tmp_path: Path) -> None:
    run = lostflops.open(hf_run(tmp_path / "run"))
    said = str(lostflops.remedy("no-float64", run))
    assert "Hugging Face Trainer has no switch of its own for it: change your own code." in said
    assert "+values = torch.from_numpy(array).float()" in said
    none = str(lostflops.remedy("fused-optimizer", run, framework="torchtitan"))
    assert "Nothing to change. The optimizer is fused by default." in none


def test_a_trainer_s_optimizer_that_is_not_fused_can_be(tmp_path: Path) -> None:
    """The default is fused from torch 2.8 on, and a job that names another optimizer has another."""
    said = str(lostflops.remedy("fused-optimizer", lostflops.open(hf_run(tmp_path / "run"))))
    assert 'TrainingArguments(optim="adamw_torch_fused")' in said and "Nothing to change" not in said


def test_the_spelling_is_that_of_the_runs_versions(tmp_path: Path) -> None:
    old = lostflops.open(hf_run(tmp_path / "old", versions="transformers 5.0.0"))
    said = str(lostflops.remedy("length-grouping", old))
    assert "group_by_length=True" in said and "train_sampling_strategy" not in said
    new = str(lostflops.remedy("length-grouping", lostflops.open(hf_run(tmp_path / "new"))))
    assert "from transformers 5.10:" in new and "before transformers 5.10:" in new


def test_what_the_gpu_cannot_do_is_said(tmp_path: Path) -> None:
    run = lostflops.open(hf_run(tmp_path / "run", gpu="Tesla V100-SXM2-32GB"))
    assert "The GPU of this recording cannot do it." in str(lostflops.remedy("fp8", run))
    assert "cannot do it" not in str(lostflops.remedy("fp16-scaling", run))


def test_what_is_on_already_is_said(tmp_path: Path) -> None:
    tables = Job(transfer=0).run([[Work(loads=30)]] * 4)
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    tables["ranges"] = [{**row, "name": name} if row["name"] == LOADER else row for row in tables["ranges"]]
    run = made(tmp_path / "run", tables)
    found = lostflops.remedy("loader-workers", run)
    assert found.is_on
    assert "The recording shows that it is on already." in str(found)
    assert lostflops.remedy("loader-workers").is_on is None


def test_the_json_of_one_holds_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "remedy.json"
    shown = printed(capsys, "loader-workers", LORA, "--json", str(target))
    assert shown.startswith("loader-workers\n")
    said = json.loads(target.read_text())
    assert set(said) == KEYS
    assert (
        said["framework"] == "unknown" and said["is_on"] is False and said["helper"].endswith(".tune_loader")
    )
    assert "data-loading-starves-device" in said["findings"]
    (change,) = said["changes"]
    assert set(change) == {"framework", "sharding", "snippets", "instead", "note"}
    assert json.loads(printed(capsys, "loader-workers", LORA, "--json", "-")) == said
    assert lostflops.remedy("loader-workers", LORA).to_json() == said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["loader-worker"], "Near is 'loader-workers'."),
        (["num_workers"], "Near is 'loader-workers'."),
        (["zzzz"], "There is no remedy called 'zzzz'.\n"),
        ([LORA], "is a path, not a remedy."),
        (["bf16", "--for", "jax"], "--for takes pytorch, hf, "),
        (["bf16", "no/such/run"], "There is no file or folder at 'no/such/run'."),
        (["bf16", "--json", ""], "--json names no file."),
        (["x\x1b[31mred\u202e"], "There is no remedy called 'x\\x1b[31mred\\u202e'."),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["remedy", *words])
    except SystemExit as left:
        status = left.code
    said = capsys.readouterr()
    assert status == 2 and says in said.err and "Traceback" not in said.err and not said.out


def test_python_has_them_too() -> None:
    assert lostflops.remedies() is REMEDIES
    import lostflops.remedies as package

    assert package() is REMEDIES, "the package that is imported answers, too"
    assert lostflops.remedies()["tf32"].safety == "numerically close"
    with pytest.raises(NoSuchRemedy):
        lostflops.remedy("nothing-at-all")
    assert "cfg.mixed_precision" in str(lostflops.remedy("bf16", framework="NeMo"))
    with pytest.raises(BadOption, match="jax"):
        lostflops.remedy("bf16", framework="jax")


def test_the_page_names_the_remedy_of_each_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.html"
    assert main(["why", LORA, "--html", str(target)]) == 0
    command = f"lostflops remedy loader-workers {LORA}"
    assert f"    remedy   {command}\n" in capsys.readouterr().out
    assert "lostflops remedy loader-workers" in target.read_text()
    assert main(["why", LORA, "--json", "-"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings[0]["remedies"] == ["loader-workers", "tokenise-ahead"]


def test_a_finding_without_a_remedy_names_none() -> None:
    page = lostflops.why(str(RUNS / "fsdp2"))
    waits = next(f for f in page.findings if f.name == "communication-waits")
    assert waits.remedies == ()
    exposed = next(f for f in page.findings if f.name == "communication-exposed")
    assert exposed.remedies and exposed.remedies[:2] == ("fsdp-prefetch", "fsdp-reshard")
    assert "bucket-size" not in exposed.remedies, "FSDP2 has no buckets"
