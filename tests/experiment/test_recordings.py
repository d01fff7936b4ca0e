"""What recordings tell that nobody interleaved: less, and it is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lostflops
from lostflops.errors import BadOption, LostflopsError, NothingThere
from lostflops.experiment.proof import prediction, recordings
from lostflops.experiment.proof.paired import Estimate
from lostflops.experiment.proof.shown.printed import printed
from run_logs import run

HOUR = 3_600_000_000_000


def steps(ms: float, number: int = 64, scatter: float = 0.01) -> list[float]:
    return (ms * np.exp(scatter * np.random.default_rng(number).standard_normal(number))).tolist()


def test_one_recording_each_assumes_what_starts_differ_by(tmp_path: Path) -> None:
    a = run(tmp_path / "a", steps(10), command=["python", "train.py", "--workers", "0"])
    b = run(tmp_path / "b", steps(8.7), command=["python", "train.py", "--workers", "4"])
    found = lostflops.prove(a, b)
    assert found.verdict == "faster" and found.ratio == pytest.approx(0.87)
    assert found.low == pytest.approx(0.87 * math.exp(-1.96 * 0.0284), rel=2e-3)
    text = str(found)
    assert "13.0 % less time per step (8.0 to 17.7; if starts of one command differ by 2 %)" in text
    assert "By the steps alone: between 13." in text
    assert "One start of each" in text and "command: 0 -> 4" in text
    assert "1.149 times as fast" in text
    assert "<iframe" in found._repr_html_()


def test_a_small_difference_of_one_recording_each_is_not_claimed(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", steps(10)), run(tmp_path / "b", steps(9.6))
    found = recordings.prove(a, b)
    assert found.verdict == "cannot tell" and found.more_pairs is None


def test_known_noise_takes_the_place_of_the_assumed_one(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", steps(10)), run(tmp_path / "b", steps(9.6))
    noise = [run(tmp_path / f"n{n}", steps(10 + 0.02 * n)) for n in range(4)]
    found = recordings.prove(a, b, noise=str(tmp_path / "n*"))
    assert found.verdict == "faster"
    assert found.interval == "95 % interval, by 4 starts of one command, which differ by 0.3 %"
    with pytest.raises(BadOption, match="names 2 starts, and 3 or more"):
        recordings.prove(a, b, noise=noise[:2])


def several(folder: Path, order: str, faster: float = 0.9) -> tuple[list[Path], list[Path]]:
    """Starts an hour apart, of the sides in `order`."""
    made: dict[str, list[Path]] = {"a": [], "b": []}
    for n, side in enumerate(order):
        ms = (10 if side == "a" else 10 * faster) * (1 + 0.002 * (n % 3))
        path = run(folder / f"{side}{n}", steps(ms), wall=1_700_000_000_000_000_000 + n * HOUR)
        made[side].append(path)
    return made["a"], made["b"]


def test_recordings_in_turns_are_pairs(tmp_path: Path) -> None:
    found = recordings.prove(*several(tmp_path, "abbaab"))
    assert found.verdict == "faster" and found.interval == "95 % interval, 3 interleaved pairs"


@pytest.mark.parametrize(("scatter", "apart", "said"), [(0.5, 0.0, True), (0.02, 0.2, False)])
def test_it_says_whether_longer_starts_would_help(
    scatter: float, apart: float, said: bool, tmp_path: Path
) -> None:
    """Pairs differ because of the steps within their starts, or because of the starts."""
    rng, sides = np.random.default_rng(4), ([], [])
    for n in range(12):
        ms = 10 * np.exp(apart * rng.standard_normal() + scatter * rng.standard_normal(64))
        side = (n + n // 2) % 2
        sides[side].append(run(tmp_path / f"{n}", ms.tolist(), wall=n * HOUR))
    found = recordings.prove(*sides)
    assert found.paired and found.share_of_steps is not None and (found.share_of_steps >= 0.5) is said
    assert (
        "starts of more than 5" in str(printed(found)) or "starts of more than 6" in str(printed(found))
    ) is (said)


def test_one_side_before_the_other_gives_no_verdict(tmp_path: Path) -> None:
    found = recordings.prove(*several(tmp_path, "aaabbb"))
    assert found.verdict == "cannot tell"
    assert found.notes[0].startswith("All recordings before the change were made first")


def test_mixed_recordings_are_compared_unpaired(tmp_path: Path) -> None:
    found = recordings.prove(*several(tmp_path, "aabba"))
    assert found.verdict == "faster" and "3 starts against 2, not paired" in found.interval


def test_a_run_that_was_killed_is_said(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", steps(10)), run(tmp_path / "b", steps(10)[:40], end=None)
    assert any("was killed or still runs" in note for note in recordings.prove(a, b).notes)
    c = run(tmp_path / "c", steps(10), end={"exception": "OutOfMemoryError"})
    assert any("ended with OutOfMemoryError" in note for note in recordings.prove(a, c).notes)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    a = run(tmp_path / "a", steps(10))
    with pytest.raises(NothingThere):
        recordings.prove(a, str(tmp_path / "none-*"))
    with pytest.raises(BadOption, match="is no experiment"):
        recordings.prove(a)


# --- predictions ---


def whatif(*edits: dict[str, Any]) -> dict[str, Any]:
    return {"replay": {"measured_ns": 1000}, "edits": list(edits)}


LOADER = {"edit": "loader=0ms", "predicted_ns": 870, "low_ns": 850, "high_ns": 900}
EVEN = {"edit": "even-ranks", "predicted_ns": 700, "low_ns": 600, "high_ns": 800}
REFUSED = {"edit": "overlap", "predicted_ns": None, "low_ns": None, "high_ns": None}


def written(folder: Path, document: Any) -> Path:
    path = folder / "predicted.json"
    path.write_text(json.dumps(document))
    return path


def test_a_prediction_of_whatif_is_read(tmp_path: Path) -> None:
    found = prediction.read(written(tmp_path, whatif(LOADER, REFUSED)))
    assert (found.edit, found.gain) == ("loader=0ms", pytest.approx(0.13))
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.15))
    several = written(tmp_path, whatif(LOADER, EVEN))
    with pytest.raises(LostflopsError, match=r"predicts 2 changes.*\n.*loader=0ms, even-ranks"):
        prediction.read(several)
    assert prediction.read(several, "even-ranks").gain == pytest.approx(0.3)
    with pytest.raises(LostflopsError, match="does not predict 'evn-ranks'"):
        prediction.read(several, "evn-ranks")


def test_a_prediction_of_the_page_is_read(tmp_path: Path) -> None:
    told = {"ns": 25, "low_ns": 20, "high_ns": 30, "error": 0.0, "refused": ""}
    page = {
        "ledger": [
            {"rank": r, "step": s, "account": x, "ns": 50} for r in (0, 1) for s in (3, 4) for x in "pq"
        ],
        "findings": [
            {"edit": "loader=0ms", "predicted": told},
            {"edit": "", "predicted": None},
            {"edit": "no", "predicted": {**told, "refused": "why"}},
        ],
    }
    assert prediction.read(written(tmp_path, page)).gain == pytest.approx(0.25)  # of a step of 100 ns


def test_measured_over_predicted(tmp_path: Path) -> None:
    said = prediction.read(written(tmp_path, whatif(LOADER)))
    near = Estimate(5, 0.025, math.log(0.872), 0.01, 0.01)
    assert said.is_inside(near)
    far = Estimate(5, 0.025, math.log(0.935), 0.01, 0.01)
    middle, low, high = said.realised(far) or (0, 0, 0)
    assert not said.is_inside(far) and middle == pytest.approx(0.5) and low < 0.5 < high


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"edits":[]}',
     '{"edits":[{}],"replay":{"measured_ns":0}}', '{"findings":[],"ledger":[]}',
     '{"edits":[{"edit":"x","predicted_ns":"y","low_ns":1,"high_ns":2}],"replay":{"measured_ns":5}}',
     '{"edits":[{"edit":"x","predicted_ns":1,"low_ns":1,"high_ns":2}],"replay":{"measured_ns":0}}', "\x00"],
)  # fmt: skip
def test_a_file_that_predicts_nothing_is_refused_in_words(content: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(content)
    with pytest.raises(prediction.NoPrediction):
        prediction.read(path)


def test_a_gain_of_recorded_steps_may_be_a_larger_share_of_those_that_are_not() -> None:
    """Of a recorded step of 90 ms 45 go; without the profiler it takes 75: half of it, or 60 %, is gained."""
    said = prediction.PredictedChange("loader=0ms", 0.5, 0.5, 0.5, 90e6)
    assert said.most(75e6) == pytest.approx(0.6)
    assert said.most(89e6) == said.most(100e6) == said.most(None) == 0.5
    assert said.most(40e6) == 0.5  # no step gains more than it takes
    measured = {
        share: Estimate(5, 0.025, math.log1p(-share), 0.01, 0.06) for share in (0.45, 0.55, 0.62, 0.66)
    }
    inside = {share: said.is_inside(found, 75e6) for share, found in measured.items()}
    assert inside == {0.45: False, 0.55: True, 0.62: True, 0.66: False}
    assert not said.is_inside(measured[0.62]) and not said.is_inside(measured[0.55], 100e6)
