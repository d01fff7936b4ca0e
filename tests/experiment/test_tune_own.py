"""`lostflops tune --try`: the user's own command is tried where a finding names what it is for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lostflops import run_folder
from lostflops.cli import main
from lostflops.errors import BadOption
from lostflops.experiment.tune import loop, state
from lostflops.experiment.tune.candidates import SeenRun, candidates, to_try
from lostflops.experiment.tune.changes import AppliedChange, JobFacts
from lostflops.experiment.tune.report import TuneReport
from lostflops.finding import Finding, PredictedGain
from test_tune import COMMAND, Killed, World, finding

OWN = ["python", "train.py", "--name", "a b", "--split", "3"]
STAGES = {"stage-balance": OWN}


def stages(made: set[str]) -> list[Finding]:
    uneven = finding("pipeline-bubble", 35, "stage-balance", predicted=28)
    garbage = finding("garbage", 20, "gc-freeze", predicted=18)
    return [one for one in (uneven, garbage) if (one.remedies or ("",))[0] not in made]


@dataclass
class Split(World):
    """A job that is faster with another split of its stages, which only its own option makes."""

    own: Sequence[str] = tuple(OWN)

    def made(self, line: str) -> set[str]:
        words, own = shlex.join(COMMAND), shlex.join(self.own)
        if line.endswith(own):
            return super().made(line.removesuffix(own) + words) | {"stage-balance"}
        return super().made(line)


def split(**more: Any) -> Split:
    return Split(**{"gains": {"stage-balance": 30.0, "gc-freeze": 15.0}, "findings": stages, **more})


def tune(world: World, path: Path, **plan: Any) -> TuneReport:
    folder = state.made(path / "out", state.TunePlan(COMMAND, **{"pairs": 3, "own": STAGES, **plan}))
    return loop.run(folder, COMMAND, lambda _: None, world.hands)


def text(found: TuneReport) -> str:
    return "\n".join(line for _, line in found.lines())


def test_a_command_of_the_users_is_proven_and_what_can_be_made_beside_it_too(tmp_path: Path) -> None:
    found = tune(split(), tmp_path)
    assert [t.change for t in found.kept] == [
        AppliedChange("stage-balance", own=True), AppliedChange("gc-freeze"),
    ]  # fmt: skip
    first, second = found.folder.decided[1], found.folder.decided[2]
    assert first.ratio == pytest.approx(0.7, rel=0.01) and first.loss == "bit-identical"
    assert second.ratio == pytest.approx(55 / 70, rel=0.01)
    assert "stage-balance (your command), gc-freeze." in found.headline
    # The job is started with both: what runs inside the process stands before the other command.
    assert found.command.startswith("PYTHONPATH=") and found.command.endswith(shlex.join(OWN))
    said = text(found)
    assert "predicted 28.0 % less time (loader=0ms)" in said and "made through a command of yours" in said
    one = found.to_json()["trials"][0]
    assert (one["remedy"], one["own"], one["typed"]) == ("stage-balance", True, shlex.join(OWN))


def test_a_gain_above_its_bound_is_not_passed_over(tmp_path: Path) -> None:
    bounded = [finding("communication-exposed", 20, "stage-balance")]
    world = split(gains={"stage-balance": 30.0}, findings=lambda made: [] if made else bounded)
    lines = [line for _, line in tune(world, tmp_path).lines() if line.startswith("at most 20.0 % less time")]
    assert len(lines) == 1 and ": the measured gain is larger: the change does more" in lines[0]


def test_killed_at_any_moment_a_loop_with_a_command_of_the_users_goes_on(tmp_path: Path) -> None:
    whole = tune(steady := split(), tmp_path / "whole")
    for at in range(1, steady.moments + 1, 3):
        with pytest.raises(Killed):
            tune(world := split(kill_at=at), path := tmp_path / f"{at}")
        folder = state.read(path / "out")
        found = loop.run(folder, state.runnable(folder.plan), lambda _: None, world.hands)
        assert [t.change for t in found.kept] == [t.change for t in whole.kept], at
        assert found.command.endswith(shlex.join(OWN)) and world.starts <= steady.starts + 2


def test_a_command_that_no_finding_asks_for_is_not_tried(tmp_path: Path) -> None:
    found = tune(world := split(findings=lambda _: [finding("starved", 1, "stage-balance")]), tmp_path)
    assert world.starts == 1 and found.headline.startswith("Nothing was changed: nothing in the recording")


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (split(gains={}), "no difference is shown"),
        (split(losses={"stage-balance": 0.0004}), "the loss is equal up to rounding only"),
        (split(breaks={"stage-balance": "fails"}), "ended with status 1"),
    ],
)
def test_a_command_of_the_users_is_judged_as_other_changes_are(
    world: Split, why: str, tmp_path: Path
) -> None:
    world.findings = lambda _: stages({"gc-freeze"})
    found = tune(world, tmp_path)
    assert not found.kept and why in found.folder.decided[1].why
    assert found.command == shlex.join(COMMAND)
    assert [one.why for one in candidates_of(found)] == ["your command was tried"]


def candidates_of(found: TuneReport) -> list[Any]:
    tried = [trial.change for trial in found.folder.trials]
    return candidates(seen(stages({"gc-freeze"})), (), tried, "bit-identical", STAGES)


def seen(findings: Sequence[Finding], **predicted: PredictedGain) -> SeenRun:
    told = {name.replace("_", "-"): gain for name, gain in predicted.items()}
    return SeenRun(findings, 100_000_000, "Bound.", JobFacts(cores=2), {}, told)


def test_a_command_may_be_for_a_finding_and_there_is_one_at_most() -> None:
    """Python of the job's own has no remedy with a name; two commands cannot both start the job."""
    busy = finding("host-busy-elsewhere", 30)
    (own,) = candidates(seen([busy]), (), (), "bit-identical", {"host-busy-elsewhere"})
    assert own.change == AppliedChange("host-busy-elsewhere", own=True)  # pyright: ignore
    before = (AppliedChange("stage-balance", own=True),)
    (left,) = candidates(seen([busy]), before, before, "bit-identical", {*STAGES, "host-busy-elsewhere"})
    assert left.why == "your other command stayed: give one command that has both changes"  # pyright: ignore


def test_what_only_the_user_can_change_is_told_with_its_gain_and_what_proves_it(tmp_path: Path) -> None:
    busy = replace(finding("host-busy-elsewhere", 40), next="Make `tally` cheaper.")
    late = finding("rank-arrives-last", 30, "rank-exclusion")
    small = finding("garbage", 1)  # and without a remedy: nothing is said of it
    dark = replace(finding("idle-unexplained", 0), gain="unknown", cost_per_step=17_000_000, next="Find out.")

    class Told(World):
        def look(self, run: Path, words: tuple[str, ...]) -> SeenRun:
            gains = {"even-ranks": PredictedGain(20_000_000, 18_000_000, 22_000_000)}
            return replace(super().look(run, words), predicted=gains)

    found = tune(Told(findings=lambda _: [busy, late, dark, small]), tmp_path, own={})
    assert [one.name for one in found.left] == ["host-busy-elsewhere", "rank-exclusion", "idle-unexplained"]
    out = found.folder.path
    lines = [line for _, line in found.lines()]
    at = lines.index(next(line for line in lines if line.startswith("host-busy-elsewhere: ")))
    assert lines[at + 1 : at + 4] == [
        "at most 40.0 % less time; replay predicts nothing for it",
        "to do: Make `tally` cheaper.",
        f"to prove it: lostflops tune --resume {out} --try 'host-busy-elsewhere=COMMAND'",
    ]
    assert lines[at + 5 : at + 8] == [
        "predicted 20.0 % less time (even-ranks)",
        f"what to change: lostflops remedy rank-exclusion {out}/recorded-1",
        f"to prove it: lostflops tune --resume {out} --try 'rank-exclusion=COMMAND'",
    ]
    assert lines[at + 8].startswith("idle-unexplained: what it would gain is not known. ")
    assert lines[at + 9] == "to do: Find out." and "What was left alone" not in lines
    one, other, unknown = found.to_json()["left"]
    assert unknown["at_most"] is None and unknown["predicted"] is None
    assert one["try"] in text(found) and one["typed"] == "Make `tally` cheaper." and one["predicted"] is None
    assert other["predicted"]["gain"] == 0.2 and other["at_most"] == 0.3


def test_what_was_left_is_proven_when_the_command_comes_later(tmp_path: Path) -> None:
    """Two changes were proven together by then: a third makes that another proof."""

    def three(made: set[str]) -> list[Finding]:
        starved = finding("starved", 45, "loader-workers", predicted=42)
        return [one for one in (starved, *stages(made)) if (one.remedies or ("",))[0] not in made]

    world = split(gains={"loader-workers": 40.0, "stage-balance": 30.0, "gc-freeze": 15.0}, findings=three)
    found = tune(world, tmp_path, own={}, max_runs=200)
    assert len(found.kept) == 2 and found.folder.whole is not None
    folder = state.read(tmp_path / "out")
    folder.offer(STAGES)
    again = loop.run(folder, COMMAND, lambda _: None, world.hands)
    assert [t.change.remedy for t in again.kept] == ["loader-workers", "gc-freeze", "stage-balance"]
    assert again.folder.whole is not None and again.folder.whole["ratio"] == pytest.approx(0.15, rel=0.05)
    read = state.read(tmp_path / "out")
    assert read.plan.own == STAGES and read.whole == again.folder.whole
    assert read.runs == again.folder.runs == world.starts
    with pytest.raises(BadOption, match="Another command for 'stage-balance' was tried") as said:
        read.offer({"stage-balance": ["python", "other.py"]})
    assert said.value.hint is not None and "--after 'python other.py'" in said.value.hint


def test_call_stacks_are_recorded_where_a_finding_asks_for_them(tmp_path: Path) -> None:
    """What lies behind plain Python is named by stacks: the recording that has them is looked at."""
    asks = replace(finding("idle-unexplained", 30), next="Record call stacks: `lostflops record`.")
    world = World(gains={"log-less": 20.0})
    kinds: list[str] = []

    def stacked(line: str, run: Path, *more: Any) -> Any:
        kinds.append(run.name)
        return world.start(line, run, *more)

    def look(run: Path, words: tuple[str, ...]) -> SeenRun:
        found = [finding("logging-inside-step", 25, "log-less")] if "stacks" in run.name else [asks]
        made = json.loads((run / "made.json").read_text())
        return replace(world.look(run, words), findings=[] if "log-less" in made else found)

    hands = replace(world.hands, record_stacks=stacked, look=look)
    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=3))
    found = loop.run(folder, COMMAND, lambda _: None, hands)
    assert [t.change.remedy for t in found.kept] == ["log-less"] and kinds == ["recorded-1-stacks"]
    assert state.read(tmp_path / "out").recorded[0].looked_at == "recorded-1-stacks"
    assert found.folder.runs == world.starts
    # What is typed is what was proven: a thread that writes, not fewer lines.
    assert "QueueListener" in text(found)


def test_a_wide_bound_does_not_come_before_a_cause_that_costs_more() -> None:
    """Of a thread that waits for a core nothing is known but that all of the step may be longer for it."""
    waits = replace(finding("waits-for-a-core", 100, "omp-wait-policy"), cost_per_step=20_000_000)
    logs = finding("logging-inside-step", 30, "log-less")
    found = candidates(seen([waits, logs]), (), (), "bit-identical")
    assert [one.change.remedy for one in to_try(found)] == ["log-less", "omp-wait-policy"]
    # A bound is half of a prediction, and what the user gave a command for comes before both.
    late = finding("rank-arrives-last", 12, "stage-balance", predicted=12)
    found = candidates(seen([waits, logs, late]), (), (), "bit-identical", STAGES)
    assert [one.change.remedy for one in to_try(found)] == ["stage-balance", "log-less", "omp-wait-policy"]
    # Products take longer as well where threads wait for each other: that comes first.
    products = finding("fp32-on-processor", 90, "bf16")
    found = candidates(replace(seen([waits]), reasons=[products]), (), (), "numerically close")
    assert [one.change.remedy for one in to_try(found)] == ["omp-wait-policy", "bf16"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--try", "stage-balance"], "names no command"),
        (["--try", "stage-balance=python 'a"], "cannot be read"),
        (["--try", "stage-balanced=python x.py"], "stage-balance"),
        (["--try", "log-less=python a.py", "--try", "log-less=python b.py"], "twice"),
        (["--try", "log-less=nowhere-to-be-found"], "There is no command"),
    ],
)
def test_a_command_that_cannot_be_tried_is_said_before_anything_runs(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words, "--", "python", "x.py"]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.glob("**/*.jsonl"))


def test_no_secret_of_a_command_of_the_users_is_kept(tmp_path: Path) -> None:
    words = [*OWN, "--token=hf_abcdefghijklmnopqrstuvwxyz012345"]
    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, own={"stage-balance": words}))
    folder.offer({"log-less": words})
    assert "hf_abc" not in (folder.path / run_folder.TUNE).read_text()
    with pytest.raises(BadOption, match="`--try stage-balance` held a secret"):
        state.runnable(state.read(folder.path).plan)
