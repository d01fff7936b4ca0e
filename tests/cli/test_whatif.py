"""`lostflops whatif`: what it lists, what it refuses, and what its JSON holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lostflops
from kineto_files import head, operator, trace, written
from lostflops.cli import main
from lostflops.errors import BadOption
from lostflops.replay.edits import edit, kinds

RUN = str(Path(__file__).parents[2] / "examples/runs/ddp")
REPLAY = {
    "error", "measured_ns", "replayed_ns", "trusted", "reason", "doubts", "critical_path", "steps",
}  # fmt: skip
EDIT = {"edit", "says", "predicted_ns", "low_ns", "high_ns", "bound_ns", "refused", "doubts"}
EVIL = "x\x1b[31mred\x9b\u202e\nnext"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def test_edits_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["whatif", "--edits"])
    assert not left.value.code
    said = capsys.readouterr().out
    assert all(f"\n{kind.typed} " in f"\n{said}" for kind in kinds().values())


def test_every_example_of_an_edit_is_one_that_can_be_typed() -> None:
    for kind in kinds().values():
        assert edit(kind.example).says


@pytest.mark.parametrize(
    "typed",
    ["unknown", "loader=fast", "faster:gemm=0", "faster:gemm", "faster=2", "even-ranks:x", "overlap=3",
     "host:nothing=0ms", "loader:x=0ms", "", ",", EVIL],
)  # fmt: skip
def test_an_edit_that_cannot_be_meant_is_said_before_anything_is_read(
    typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(tmp_path / "absent"), typed]) != 0
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\u202e" not in said and "\x9b" not in said
    assert "absent" not in said
    with pytest.raises(BadOption):
        lostflops.whatif(RUN, typed)


def test_json_goes_to_the_terminal_or_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["whatif", RUN, "even-ranks", "loader=0ms", "even-ranks,faster:gemm=2"]
    assert main([*asked, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"replay", "edits"} and set(document["replay"]) == REPLAY
    assert all(set(each) == EDIT for each in document["edits"])
    even, loader, both = document["edits"]
    assert even["bound_ns"] <= even["predicted_ns"] <= document["replay"]["measured_ns"]
    assert even["low_ns"] <= even["predicted_ns"] <= even["high_ns"]
    assert loader["predicted_ns"] is None and loader["refused"]
    assert both["predicted_ns"] <= even["predicted_ns"]
    file = tmp_path / "answers.json"
    assert main([*asked, "--json", str(file)]) == 0
    assert json.loads(file.read_text()) == document
    assert "even-ranks" in capsys.readouterr().out
    assert lostflops.whatif(RUN, *asked[2:]).to_json() == document


def test_without_an_edit_every_rank_and_step_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", RUN, "--steps", "4-6", "--json", "-"]) == 0
    steps = json.loads(capsys.readouterr().out)["replay"]["steps"]
    assert {(s["rank"], s["step"]) for s in steps} == {(r, n) for r in range(4) for n in (4, 5, 6)}


def test_names_in_a_trace_reach_no_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [operator(EVIL, 1000 + 50 * n, 40) for n in range(80)]
    path = written(tmp_path / "evil.json", trace(events, head(0, 1)))
    for asked in ([], [f"faster:{EVIL}=2"], ["cuda-graph"]):
        main(["whatif", str(path), *asked])
        said = capsys.readouterr()
        assert not any(c in said.out + said.err for c in "\x1b\x9b\u202e")
        assert "\nnext" not in said.out


def test_what_is_refused_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "few.json", trace([operator("aten::mm", 1000, 40)], head(3, 8)))
    main(["whatif", str(path), "loader=0ms", "--allow-missing-ranks"])
    assert "not predicted" in capsys.readouterr().out
