"""`lostflops tune` on made-up jobs: what it tries, what stays, and that it goes on after a kill."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import run_logs
from lostflops import run_folder
from lostflops.capture.record.recording import StepOn
from lostflops.cli import main
from lostflops.experiment import journal
from lostflops.experiment.proof.proven import Proven
from lostflops.experiment.proof.running import command
from lostflops.experiment.proof.running import folder as proofs
from lostflops.experiment.proof.running import loop as proving
from lostflops.experiment.proof.running.command import Ended, TimeIsUp
from lostflops.experiment.tune import changes, hands, loop, state
from lostflops.experiment.tune.candidates import SeenRun
from lostflops.experiment.tune.changes import AppliedChange, JobFacts
from lostflops.experiment.tune.hands import CannotTune, Hands
from lostflops.experiment.tune.report import TuneReport
from lostflops.finding import Finding, PredictedGain

Say = Callable[[str], None]
COMMAND = ["python", "train.py", "--name", "a b"]
STEPS = 40
NOISE = (0.0, 0.004, -0.003, 0.002, 0.001)


class Killed(BaseException):
    """The process is gone: nothing of ours runs any more."""


def finding(name: str, ms: float, *remedies: str, predicted: float | None = None) -> Finding:
    gain = None if predicted is None else PredictedGain(round(predicted * 1e6), 0, round(predicted * 1e6))
    return Finding(
        name, f"{name} costs {ms} ms", "at most", (), "", ns_per_step=round(ms * 1e6), remedies=remedies,
        edit="loader=0ms", predicted=gain,
    )  # fmt: skip


@dataclass
class World:
    """A job whose step takes 100 ms, less what each change gains; every start is counted."""

    gains: dict[str, float] = field(default_factory=lambda: {"loader-workers": 40.0})
    findings: Callable[[set[str]], Sequence[Finding]] = lambda made: (
        []
        if "loader-workers" in made
        else [finding("starved", 45, "loader-workers", "tokenise-ahead", predicted=42)]
    )
    losses: dict[str, float] = field(default_factory=dict[str, float])  # added to the loss with a change
    breaks: dict[str, str] = field(default_factory=dict[str, str])  # how a start ends with a change
    kill_at: int | None = None
    moments: int = 0
    starts: int = 0

    def made(self, line: str) -> set[str]:
        """The changes that a command line makes."""
        found: set[str] = set()
        if path := re.search(r"PYTHONPATH=(\S+?)\"", line):
            found = set(json.loads((Path(shlex.split(path[1])[0]) / "settings.json").read_text()))
        if "PYTORCH_CUDA_ALLOC_CONF" in line:
            found.add("allocator-settings")
        assert line.endswith(shlex.join(COMMAND)), line
        return found

    def moment(self) -> None:
        self.moments += 1
        if self.moments == self.kill_at:
            raise Killed

    def start(self, line: str, run: Path, step_on: StepOn | None, steps: int, until: float) -> Ended:
        self.moment()
        self.starts += 1
        made = self.made(line)
        (run / "node-0000").mkdir(parents=True)
        for name in sorted(made):
            if self.breaks.get(name) == "hangs":
                raise TimeIsUp("the time was up")
            if self.breaks.get(name) == "fails":
                (run / run_folder.OUTPUT).write_text("cannot pickle it\n")
                return Ended(run, 1, 1.0)
            by_us = name in changes.CHANGES and changes.CHANGES[name].is_inside
            inside = by_us and self.breaks.get(name) != "nothing"
            if inside and run.name.startswith(state.TRYOUT):
                note = {"change": name, "what": f"{name} made", "failed": False}
                with (run.parent / state.SHIM / "applied-1.jsonl").open("a") as file:
                    file.write(json.dumps(note) + "\n")
        (run / "made.json").write_text(json.dumps(sorted(made)))
        self.moment()
        return Ended(run, 0, 1.0)

    def look(self, run: Path, words: tuple[str, ...]) -> SeenRun:
        self.moment()
        made = set(json.loads((run / "made.json").read_text()))
        return SeenRun(
            self.findings(made), round(self.step(made) * 1e6), "Input-bound.",
            JobFacts(cores=2, loading=0.8, words=words), {"loader-workers": "num_workers=4"},
        )  # fmt: skip

    def step(self, made: set[str]) -> float:
        return 100 - sum(self.gains.get(name, 0.0) for name in made)

    def prove(self, folder: proofs.ProofFolder, say: Callable[[str], None], until: float) -> Proven:
        plan = folder.plan
        while len(folder.pairs) < plan.pairs:
            n = len(folder.pairs) + 1
            names: dict[str, str] = {}
            for at, (side, line) in enumerate(zip(proofs.SIDES, plan.commands, strict=True)):
                self.moment()
                self.starts += 1
                made = self.made(line)
                ms = self.step(made) * (1 + NOISE[(2 * n + at) % len(NOISE)])
                loss = sum(self.losses.get(name, 0.0) for name in made)
                run = folder.start(n, side)
                # What is no number is written as text.
                run_logs.run(run, [ms] * STEPS, loss=[1.0 + loss if loss < 9 else "inf"] * STEPS)
                names[side] = run.name
            folder.add(proofs.PairLine(n, **names), {})
            self.moment()
        found = proving.proven(folder, ended=True)
        folder.end("", found.to_json())
        return found

    @property
    def hands(self) -> Hands:
        return Hands(self.start, self.start, self.start, self.look, self.prove)


def tune(world: World, path: Path, **plan: Any) -> TuneReport:
    folder = state.made(path / "out", state.TunePlan(COMMAND, **{"pairs": 3, **plan}))
    return loop.run(folder, COMMAND, lambda _: None, world.hands)


def test_a_starved_job_ends_with_workers_proven(tmp_path: Path) -> None:
    found = tune(world := World(), tmp_path)
    assert [trial.change for trial in found.kept] == [AppliedChange("loader-workers", {"workers": 2})]
    one = found.folder.decided[1]
    assert one.verdict == "faster" and one.low is not None and one.high is not None
    assert one.low < 0.6 < one.high and one.loss == "bit-identical"
    assert found.headline.startswith("40.") or found.headline.startswith("39.")
    assert not found.ended and found.folder.runs == world.starts == 2 + 1 + 12
    text = "\n".join(line for _, line in found.lines())
    # What to type has the number that was proven, not the example's.
    assert "predicted 42.0 % less time (loader=0ms)" in text and "num_workers=2" in text
    assert "tokenise-ahead" not in {trial.change.remedy for trial in found.folder.trials}
    shim = found.folder.path / "trial-1" / "shim"
    assert found.command == f'PYTHONPATH={shim}"${{PYTHONPATH:+:$PYTHONPATH}}" {shlex.join(COMMAND)}'
    document = json.loads(json.dumps(found.to_json()))
    assert document["kept"] == ["loader-workers"] and document["trials"][0]["measured"]["pairs"] == 6
    assert found.markdown().startswith(f"# {found.headline}\n")


def test_a_change_is_predicted_with_the_numbers_that_it_is_made_with(tmp_path: Path) -> None:
    """Two workers on two cores do not make the loader free: its own edit is replayed, not `loader=0ms`."""
    world = World()
    gain = PredictedGain(30_000_000, 28_000_000, 41_000_000)

    def look(run: Path, words: tuple[str, ...]) -> SeenRun:
        return replace(world.look(run, words), predicted={"loader-workers=2": gain})

    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=3))
    found = loop.run(folder, COMMAND, lambda _: None, replace(world.hands, look=look))
    (trial,) = found.folder.trials
    assert (trial.gain, trial.low, trial.high, trial.edit) == (0.3, 0.28, 0.41, "loader-workers=2")
    assert "predicted 30.0 % less time (loader-workers=2)" in "\n".join(line for _, line in found.lines())


def test_of_a_change_that_was_kept_twice_only_its_last_numbers_are_to_be_typed(tmp_path: Path) -> None:
    """Two workers, then four: two diffs of one line were printed, and both stood in the headline."""

    class Growing(World):
        def step(self, made: set[str]) -> float:
            return super().step(made) - 20 * (self.workers == 4 and "loader-workers" in made)

        def made(self, line: str) -> set[str]:
            found = super().made(line)
            self.workers = 0
            if path := re.search(r"PYTHONPATH=(\S+?)\"", line):
                asked = json.loads((Path(shlex.split(path[1])[0]) / "settings.json").read_text())
                self.workers = asked["loader-workers"]["workers"]
            return found

        def look(self, run: Path, words: tuple[str, ...]) -> SeenRun:
            seen = super().look(run, words)
            ended = self.workers == 4
            return replace(
                seen, findings=[] if ended else [finding("starved", 45, "loader-workers", predicted=42)]
            )

    world = Growing()
    found = tune(world, tmp_path)
    assert [trial.change.options["workers"] for trial in found.kept] == [2, 4]
    lines = [line for _, line in found.lines()]
    assert found.headline.endswith(": loader-workers (workers 4).")
    assert [line for line in lines if line.startswith("num_workers=")] == ["num_workers=4"]
    assert found.to_json()["kept"] == ["loader-workers"]


@pytest.mark.parametrize(
    ("recorded", "gain", "said"),
    [
        (100.0, 0.42, ": outside the measured interval"),
        (100.0, 0.6, ": inside the measured interval"),
        (
            150.0,
            0.42,
            " of a recorded step, up to 63.0 % of one that is not: reaches into the measured interval",
        ),
        (110.0, 0.42, " of a recorded step, up to 46.2 % of one that is not: outside the measured interval"),
    ],
)
def test_a_prediction_is_held_against_steps_that_took_less_than_the_recorded_ones(
    recorded: float, gain: float, said: str, tmp_path: Path
) -> None:
    """`prove` says it so: 31 of 74 recorded ms are 60 % of a step of 52 ms."""
    world = World(gains={"loader-workers": 60.0})

    def look(run: Path, words: tuple[str, ...]) -> SeenRun:
        seen = world.look(run, words)
        ns = round(recorded * 1e6)
        findings = [replace(one, predicted=PredictedGain(*[round(gain * ns)] * 3)) for one in seen.findings]
        return replace(seen, step_ns=ns, findings=findings)

    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=3))
    found = loop.run(folder, COMMAND, lambda _: None, replace(world.hands, look=look))
    lines = [line for _, line in found.lines() if line.startswith("predicted")]
    assert lines == [f"predicted {100 * gain:.1f} % less time (loader=0ms){said}"]
    again = TuneReport(state.read(tmp_path / "out"), tuple(COMMAND))
    assert lines[0] in [line for _, line in again.lines()]


def test_a_healthy_job_is_not_changed(tmp_path: Path) -> None:
    small = [finding("starved", 1, "loader-workers", predicted=1.0), finding("idle", 30)]
    found = tune(world := World(findings=lambda _: small), tmp_path)
    assert not found.folder.trials and world.starts == 1 and found.command == shlex.join(COMMAND)
    assert found.headline.startswith("Nothing was changed: nothing in the recording gives reason")
    assert "1.0 % less time, which is not worth a proof" in "\n".join(line for _, line in found.lines())


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (World(gains={"loader-workers": -10.0}), "steps take 10.1 % more time"),
        (World(gains={"loader-workers": 0.0}), "no difference is shown"),
        (World(losses={"loader-workers": 0.0004}), "the loss is equal up to rounding only"),
        (World(losses={"loader-workers": float("inf")}), "the loss is not finite any more, from step 0 on"),
        (
            World(breaks={"loader-workers": "fails"}),
            "ended with status 1, after it printed: cannot pickle it",
        ),
        (World(breaks={"loader-workers": "hangs"}), "the job hangs with it"),
        (World(breaks={"loader-workers": "nothing"}), "the job has nothing that it changes"),
    ],
    ids=["slower", "no-difference", "rounding", "diverged", "fails", "hangs", "nothing"],
)
def test_a_change_that_does_not_prove_itself_is_taken_back(world: World, why: str, tmp_path: Path) -> None:
    found = tune(world, tmp_path)
    assert not found.kept and not found.ended and found.command == shlex.join(COMMAND)
    assert why in found.folder.decided[1].why and found.folder.decided[1].why.startswith("taken back")
    assert found.headline == "Nothing was changed: 1 change tried, and none proved a gain."
    # It is not tried again.
    assert len(found.folder.trials) == 1 and len(found.folder.recorded) == 1


def test_only_what_is_as_safe_as_asked_for_is_tried(tmp_path: Path) -> None:
    def findings(made: set[str]) -> list[Finding]:
        return [] if "bf16" in made else [finding("fp32", 50, "bf16", predicted=50)]

    world = World(gains={"bf16": 50.0}, losses={"bf16": 0.0004}, findings=findings)
    found = tune(world, tmp_path / "a")
    assert not found.folder.trials
    assert found.left[0].why == "it is numerically close: `--safety numerically-close` allows it"
    found = tune(World(world.gains, findings, world.losses), tmp_path / "b", safety="numerically close")
    assert [trial.change.remedy for trial in found.kept] == ["bf16"]
    assert found.folder.decided[1].loss == "rounding"


def two(made: set[str]) -> list[Finding]:
    starved = finding("starved", 45, "loader-workers", predicted=42)
    garbage = finding("garbage", 20, "gc-freeze", predicted=18)
    return [one for one in (starved, garbage) if (one.remedies or ("",))[0] not in made]


def two_faults(**more: Any) -> World:
    return World(gains={"loader-workers": 40.0, "gc-freeze": 15.0}, findings=two, **more)


def test_several_changes_are_proven_one_on_the_other_and_together(tmp_path: Path) -> None:
    found = tune(world := two_faults(), tmp_path)
    assert [trial.change.remedy for trial in found.kept] == ["loader-workers", "gc-freeze"]
    second = found.folder.decided[2]
    assert second.ratio == pytest.approx(45 / 60, rel=0.01)
    assert found.folder.whole is not None and found.folder.whole["ratio"] == pytest.approx(0.45, rel=0.01)
    assert found.headline.startswith("Together 55.")
    assert found.folder.runs == world.starts  # with those of the proof of both


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    whole = tune(steady := two_faults(), tmp_path / "whole")
    assert steady.moments > 40
    for at in range(1, steady.moments + 1):
        path = tmp_path / f"{at}"
        with pytest.raises(Killed):
            tune(world := two_faults(kill_at=at), path)
        # The kill tore a line off.
        with (path / "out" / run_folder.TUNE).open("a") as file:
            file.write('{"kind": "deci')
        folder = state.read(path / "out")
        before = folder.runs
        found = loop.run(folder, folder.plan.command, lambda _: None, world.hands)
        assert [t.change for t in found.kept] == [t.change for t in whole.kept], at
        assert len(found.folder.trials) == 2 and found.folder.runs >= before
        # At most a recording or a tryout, or one pair of starts, is made again.
        assert world.starts <= steady.starts + 2, at
        again = state.read(path / "out")
        assert again.ended == "" and again.kept == found.kept and again.runs == found.folder.runs


def test_runs_and_minutes_are_bounds(tmp_path: Path) -> None:
    found = tune(world := two_faults(), tmp_path / "a", max_runs=24)
    assert world.starts <= 24 and len(found.kept) == 1
    assert "--max-runs` allows more" in found.ended and "before all was tried" in "".join(
        line for _, line in found.lines()
    )
    found = tune(world := World(), tmp_path / "b", minutes=1e-9)
    assert world.starts == 0 and "minutes are over" in found.ended
    assert found.headline.startswith("Nothing was changed, and not all was tried")
    folder = state.read(tmp_path / "b" / "out")
    folder.plan.minutes = 5
    assert loop.run(folder, COMMAND, lambda _: None, world.hands).kept


NOISY = (0.0, 0.25, -0.2, 0.1, 0.15)  # with 40 % less time: shown after 7 pairs, and not known well


def test_when_the_time_is_up_a_difference_that_was_shown_at_a_look_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight pairs of ten, and the look after seven had shown it; or five, and none had."""
    monkeypatch.setattr(sys.modules[__name__], "NOISE", NOISY)
    for pairs, stays in ((8, ["loader-workers"]), (5, [])):
        world = World()

        def prove(
            folder: proofs.ProofFolder, say: Say, until: float, world: World = world, n: int = pairs
        ) -> Proven:
            assert folder.plan.decides
            folder.plan.pairs, planned = n, folder.plan.pairs
            world.prove(folder, say, until)
            folder.plan.pairs, folder.plan.decides = planned, False
            monkeypatch.setattr(loop._Loop, "until", property(lambda self: 0.0))
            return proving.proven(folder, f"Stopped after {n} pairs: the time was up.", ended=True)

        folder = state.made(tmp_path / f"out-{pairs}", state.TunePlan(COMMAND, pairs=10))
        found = loop.run(folder, COMMAND, lambda _: None, replace(world.hands, prove=prove))
        monkeypatch.undo()
        monkeypatch.setattr(sys.modules[__name__], "NOISE", NOISY)
        assert [trial.change.remedy for trial in found.kept] == stays


def test_a_full_disk_ends_it_and_what_is_known_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, lines = journal.append, 0

    def full(path: Path, line: Any) -> None:
        nonlocal lines
        lines += path.name == run_folder.TUNE
        if lines > 6:  # plan, begun, recorded, trying, begun, decided
            raise OSError(28, "No space left on device")
        append(path, line)

    monkeypatch.setattr(journal, "append", full)
    found = tune(two_faults(), tmp_path)
    assert [trial.change.remedy for trial in found.kept] == ["loader-workers"]
    assert found.ended.endswith("could not be written: No space left on device")
    monkeypatch.undo()
    folder = state.read(tmp_path / "out")
    assert [t.change.remedy for t in folder.kept] == ["loader-workers"]
    assert len(loop.run(folder, COMMAND, lambda _: None, two_faults().hands).kept) == 2


def test_a_folder_that_cannot_be_copied_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    def full(*_: Any, **__: Any) -> None:
        said = [(f"a/{n}", f"b/{n}", f"[Errno 28] No space left on device: 'b/{n}'") for n in range(40)]
        raise shutil.Error(said)

    monkeypatch.setattr(shutil, "copytree", full)
    found = tune(World(), tmp_path)
    shim = tmp_path / "out" / "trial-1" / "shim"
    assert found.ended == f"'{shim}' could not be written: No space left on device"
    monkeypatch.undo()
    assert loop.run(state.read(tmp_path / "out"), COMMAND, lambda _: None, World().hands).kept


def test_somebody_may_end_it(tmp_path: Path) -> None:
    world = World()

    def interrupted(folder: proofs.ProofFolder, say: Callable[[str], None], until: float) -> Proven:
        raise KeyboardInterrupt

    stopping = Hands(world.start, world.start, world.start, world.look, interrupted)
    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=6))
    found = loop.run(folder, COMMAND, lambda _: None, stopping)
    assert found.interrupted and found.ended == "somebody ended it" and not found.kept
    text = "\n".join(line for _, line in found.lines())
    assert f"0 pairs of its proof are finished: `lostflops prove {tmp_path}/out/trial-1/proof` reads" in text
    again = loop.run(state.read(tmp_path / "out"), COMMAND, lambda _: None, world.hands)
    assert [trial.change.remedy for trial in again.kept] == ["loader-workers"]


def test_a_job_that_fails_by_itself_is_said(tmp_path: Path) -> None:
    world = World()

    def fails(line: str, run: Path, step_on: StepOn | None, steps: int, until: float) -> Ended:
        run.mkdir(parents=True)
        (run / run_folder.OUTPUT).write_text("no such data set\n")
        return Ended(run, 3, 1.0)

    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND))
    with pytest.raises(CannotTune, match="status 3, after it printed: no such data set"):
        loop.run(folder, COMMAND, lambda _: None, Hands(fails, fails, fails, world.look, world.prove))


def failing(at: int, world: World, always: bool = False, seed: int | None = None) -> Hands:
    """A job that fails in its proof, as it is or `always`, when so many pairs are finished."""

    def prove(folder: proofs.ProofFolder, say: Callable[[str], None], until: float) -> Proven:
        folder.plan.seed = folder.plan.seed if seed is None else seed

        def run(line: str, place: Path, *_: Any, **__: Any) -> Ended:
            fails = len(folder.pairs) >= at and (always or not world.made(line))
            place.mkdir(parents=True)
            (place / run_folder.OUTPUT).write_text("lost the data server\n")
            if not fails:
                run_logs.run(place, [100 - 40.0 * bool(world.made(line)) + len(folder.pairs)] * STEPS)
            return Ended(place, 5 if fails else 0, 1.0)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(proving.command, "run", run)
            return hands.prove(folder, say, until)

    return Hands(world.start, world.start, world.start, world.look, prove)


@pytest.mark.parametrize("at", [0, 1], ids=["before the first pair", "after a pair"])
def test_a_job_that_fails_without_the_change_ends_the_loop_and_not_the_change(
    at: int, tmp_path: Path
) -> None:
    world = World()
    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=6))
    found = loop.run(folder, COMMAND, lambda _: None, failing(at, world))
    assert found.headline.startswith("Nothing was changed, and not all was tried: ")
    assert "The command before the change ended with status 5, after it printed: lost the" in found.headline
    assert not found.folder.decided and found.folder.pending is not None
    # When it runs again, the proof goes on.
    again = loop.run(state.read(tmp_path / "out"), COMMAND, lambda _: None, world.hands)
    assert [trial.change.remedy for trial in again.kept] == ["loader-workers"]


@pytest.mark.parametrize("at", [0, 1], ids=["before the first pair", "after a pair"])
@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_fails_with_and_without_the_change_takes_no_change_back(
    at: int, seed: int, tmp_path: Path
) -> None:
    """Which side of a pair starts first is drawn, and the change was blamed where it was the change's."""
    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=6))
    found = loop.run(folder, COMMAND, lambda _: None, failing(at, world := World(), always=True, seed=seed))
    assert "The command before the change ended with status 5, after it printed: lost the" in found.headline
    assert not found.folder.decided and found.folder.pending is not None
    starts = len(list((tmp_path / "out").rglob("output.txt"))) + world.starts
    assert found.folder.runs == starts > 2
    said = " ".join(line for _, line in found.lines())
    assert f"{starts} starts of the command in" in said
    assert f"{at} {'pair of its proof is' if at else 'pairs of its proof are'} finished" in said


def test_no_finished_pair_is_not_counted_as_one_that_cannot_tell(tmp_path: Path) -> None:
    def prove(folder: proofs.ProofFolder, say: Callable[[str], None], until: float) -> Proven:
        raise proving.CannotMeasure("The command after the change ended with status 5.")

    world = World()
    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=6))
    found = loop.run(
        folder, COMMAND, lambda _: None, Hands(world.start, world.start, world.start, world.look, prove)
    )
    assert found.folder.decided[1].why == (
        "taken back: no pair of starts was finished. The command after the change ended with status 5"
    )


def test_a_disk_that_is_full_during_a_proof_takes_no_change_back(tmp_path: Path) -> None:
    world = World()

    def full(folder: proofs.ProofFolder, say: Callable[[str], None], until: float) -> Proven:
        stopped = "Stopped after 0 pairs: 'x' could not be written: No space left on device"
        return Proven("cannot tell", None, None, "", stopped=stopped, hindered=True)

    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=6))
    found = loop.run(
        folder, COMMAND, lambda _: None, Hands(world.start, world.start, world.start, world.look, full)
    )
    assert found.ended.endswith("No space left on device") and not found.folder.decided
    again = loop.run(state.read(tmp_path / "out"), COMMAND, lambda _: None, world.hands)
    assert [trial.change.remedy for trial in again.kept] == ["loader-workers"]


def test_a_job_that_diverges_by_itself_is_said_once(tmp_path: Path) -> None:
    world = two_faults()
    world.losses["loader-workers"] = 0.0
    real = world.prove

    def prove(folder: proofs.ProofFolder, say: Callable[[str], None], until: float) -> Proven:
        found = real(folder, say, until)
        return replace(found, loss=replace(found.loss, parity="not finite", first=28))

    folder = state.made(tmp_path / "out", state.TunePlan(COMMAND, pairs=6))
    found = loop.run(
        folder, COMMAND, lambda _: None, Hands(world.start, world.start, world.start, world.look, prove)
    )
    assert len(found.folder.trials) == 1 and not found.kept
    assert [line for _, line in found.lines() if "diverges by itself" in line] == [found.headline]
    assert found.headline == (
        "Nothing was changed, and not all was tried: the job diverges by itself, its loss is not finite "
        "from step 28 on."
    )


def test_what_python_underlines_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("  File 'x.py'\n    f(1)\n    ~^^^\nRuntimeError: no shard\n\n")
    assert command.last_lines(tmp_path / "output.txt") == "File 'x.py' / f(1) / RuntimeError: no shard"


def test_a_job_without_steps_is_told_from_one_without_a_trace(tmp_path: Path) -> None:
    until = time.monotonic() + 60
    with pytest.raises(CannotTune, match="No step of the command was seen") as said:
        hands.record(f"{sys.executable} -c 'print(1)'", tmp_path / "a", None, 24, until)
    assert "no process of it imported torch.optim" in str(said.value)
    run_logs.run(tmp_path / "b", [10.0] * STEPS)
    with pytest.raises(CannotTune, match="more than 21 steps"):
        hands.look(tmp_path / "b", ())


def test_a_recording_that_a_full_disk_lost_says_so(tmp_path: Path) -> None:
    run = run_logs.run(tmp_path / "run", [10.0] * STEPS)
    (log,) = run.glob(run_folder.STEP_LOGS_OF_RUN)
    (log.parent / ".window-00000-a0-w000.pt.trace.json.tmp.tmp").write_text('{"traceEvents": [')
    lost = {"kind": "window", "number": 0, "state": "lost", "reason": "only 39 MB are free on the disk"}
    log.write_text(log.read_text() + json.dumps({**lost, "code": "disk_full"}) + "\n")
    with pytest.raises(CannotTune, match="were not recorded: only 39 MB are free on the disk") as said:
        hands.look(run, ())
    assert said.value.hint == "free some space, or choose an --output on another disk."


def test_too_few_workers_are_doubled_up_to_twice_the_cores() -> None:
    workers = changes.CHANGES["loader-workers"].options
    facts = JobFacts(cores=8, ranks=2, loading=2.5)
    assert workers(facts, {}) == {"workers": 4}
    assert workers(facts, {"workers": 4}) == {"workers": 8}
    assert workers(facts, {"workers": 8}) is None
    assert workers(JobFacts(cores=1, loading=9.0), {}) == {"workers": 2}


def test_what_to_type_has_the_numbers_that_were_proven() -> None:
    told = changes.with_its_numbers
    threads = AppliedChange("cpu-threads", {"threads": 3})
    assert told(threads, "OMP_NUM_THREADS=4 torchrun --nproc-per-node=8\ntorch.set_num_threads(4)") == (
        "OMP_NUM_THREADS=3 torchrun --nproc-per-node=8\ntorch.set_num_threads(3)"
    )
    bucket = AppliedChange("bucket-size", {"mb": 100})
    assert told(bucket, "DDP(model, bucket_cap_mb=50, x=5)") == "DDP(model, bucket_cap_mb=100, x=5)"
    workers = AppliedChange("loader-workers", {"workers": 2})
    assert told(workers, "dataloader_num_workers=4, x=4") == "dataloader_num_workers=2, x=4"
    assert told(AppliedChange("gc-freeze"), "collect(4)") == "collect(4)"


def test_a_launcher_gets_its_option(tmp_path: Path) -> None:
    words = ["torchrun", "--nproc-per-node", "2", "train.py"]
    options = changes.CHANGES["numa-binding"].options
    assert options(JobFacts(words=tuple(words)), {}) == {}
    assert options(JobFacts(words=("python", "train.py")), {}) is None
    assert options(JobFacts(words=("torchrun", "--numa-binding=socket", "t.py")), {}) is None
    made = (AppliedChange("numa-binding"), AppliedChange("cpu-threads", {"threads": 3}))
    line = changes.command_line(words, made[:1], tmp_path)
    assert line == "torchrun --numa-binding=node --nproc-per-node 2 train.py"
    assert (
        "OMP_NUM_THREADS=3 MKL_NUM_THREADS=3 OMP_WAIT_POLICY=PASSIVE torchrun --numa"
        in changes.command_line(words, made, tmp_path)
    )


# A job that shows what was changed in it, without PyTorch: a stand-in of the modules that changes wait for.
STAND_IN = """
import sys, types
class Dataset: pass
class IterableDataset(Dataset): pass
class DataLoader:
    def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, num_workers=0,
                 collate_fn=None, pin_memory=False, persistent_workers=False):
        self.num_workers, self.persistent_workers = num_workers, persistent_workers
"""


def test_changes_are_made_inside_the_process_and_noted(tmp_path: Path) -> None:
    import subprocess

    package = tmp_path / "lib" / "torch" / "utils" / "data"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "dataloader.py").write_text(STAND_IN)
    user = tmp_path / "user"
    user.mkdir()
    (user / "sitecustomize.py").write_text("import sys; sys.users_own = True\n")
    shim = tmp_path / "shim"
    changes.write([AppliedChange("loader-workers", {"workers": 3})], shim)
    (tmp_path / "job.py").write_text(
        "import sys\nfrom torch.utils.data.dataloader import *\n"
        "told = [DataLoader(Dataset()), DataLoader(Dataset(), 4, False, None, None, 1),\n"
        "        DataLoader(Dataset(), num_workers=5), DataLoader(IterableDataset()),\n"
        "        DataLoader(Dataset(), sampler=iter([0, 1])), DataLoader(Dataset(), sampler=[0, 1])]\n"
        "print([(one.num_workers, one.persistent_workers) for one in told], sys.users_own)\n"
    )
    line = changes.command_line([sys.executable, str(tmp_path / "job.py")], [
        AppliedChange("loader-workers", {"workers": 3})], shim)  # fmt: skip
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([str(user), str(tmp_path / "lib")])}
    done = subprocess.run(["/bin/sh", "-c", line], env=given, capture_output=True, text=True, check=True)
    assert (
        done.stdout.strip() == "[(3, False), (3, False), (5, False), (0, False), (0, False), (3, False)] True"
    )
    assert changes.taken_up(shim) == {"loader-workers": ["num_workers 0 -> 3"]}
    assert not changes.failed(shim)


def test_the_command_writes_the_report_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    world = World()
    real = loop.run
    monkeypatch.setattr(loop, "run", lambda folder, words, say: real(folder, words, say, world.hands))
    asked = ["tune", "--output", "out", "--json", "r.json", "--pairs", "6"]
    with pytest.raises(SystemExit) as left:
        main([*asked, "--max-runs", "14", "--", *COMMAND])
    assert left.value.code == 1
    said = capsys.readouterr().out
    assert said.startswith("39.9 % less time per step (95 % interval") and "before all was tried" in said
    document = json.loads(Path("r.json").read_text())
    assert document == json.loads(Path("out/report.json").read_text())
    assert Path("out/report.md").read_text().startswith("# ")
    assert main(["tune", "--resume", "out", "--max-runs", "60"]) == 0
    assert "loader-workers (workers 2): kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "command"),
        (["--max-runs", "3", "--", "python", "x.py"], "--max-runs takes a number from 14"),
        (["--pairs", "2", "--", "python", "x.py"], "--pairs takes a number from 6"),
        (["--minutes", "soon", "--", "python", "x.py"], "not a number of minutes"),
        (["--resume", "nowhere"], "is not a folder of `lostflops tune`"),
        (["--resume", "a", "--output", "b"], "goes on in its own folder"),
        (["--output", "a:b", "--", "python", "x.py"], "cannot be on PYTHONPATH"),
        (["--step-on", "x", "--", "python", "x.py"], "does not say what ends a step"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_is_said_before_anything_runs(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.glob("**/*.jsonl"))


def test_no_secret_of_a_command_is_kept(tmp_path: Path) -> None:
    words = [*COMMAND, "--token=hf_abcdefghijklmnopqrstuvwxyz012345"]
    folder = state.made(tmp_path / "out", state.TunePlan(words))
    assert "hf_abc" not in (folder.path / run_folder.TUNE).read_text()
    with pytest.raises(Exception, match="held a secret"):
        state.runnable(state.read(folder.path).plan)
