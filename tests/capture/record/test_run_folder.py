"""What is in a run folder has its names and lines from one module, inside the job and outside."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lostflops import run_folder
from lostflops.capture.record import new_run
from lostflops.capture.record.injected.lostflops_recorder.rank import Rank
from lostflops.capture.record.injected.lostflops_recorder.step_log import StepLog
from lostflops.ingest.step_log import reader

SOURCE = Path(run_folder.__file__).parent
INSIDE = new_run.PAYLOAD / "lostflops_recorder"
# Of names with a part that varies, what does not vary.
PARTS = re.compile(
    r"steps-(\{|\\d|\*|%)|(failed|collectives|topology)-\*|node-(\*|\{)|seen-|agreed-|\.pt\.trace\.json$|-w(\{|\\d)"
)
WHOLE = {
    run_folder.RECORDING, run_folder.MESSAGES, run_folder.SETTINGS, run_folder.ANNOTATIONS,
    run_folder.STEP_ON, run_folder.NSYS, run_folder.REQUEST, run_folder.LINKS, run_folder.FACTS,
    run_folder.TAIL, run_folder.KINETO, run_folder.MANIFEST, run_folder.STEP_LOGS_OF_RUN, run_folder.BOOT,
}  # fmt: skip
# A script that runs alone, in a Python of its own; a trace in no run folder; what takes a machine's place.
ALONE = {
    INSIDE / "copier.py": {run_folder.MESSAGES},
    SOURCE / "capture/record/cell.py": {"cell.pt.trace.json"},
    SOURCE / "privacy/cleaner.py": {"node-{}-{}"},
    SOURCE / "lab/exercises/running.py": {"run.json"},  # beside the recording of an exercise
}


def test_the_job_has_the_same_module() -> None:
    inside = INSIDE / "run_folder.py"
    assert inside.is_symlink() and inside.resolve() == Path(run_folder.__file__).resolve()
    tree = ast.parse(inside.read_text())
    assert not [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], (
        "imports nothing"
    )


def test_what_goes_into_a_job_is_a_file_of_its_own(tmp_path: Path) -> None:
    from lostflops.capture.record.recording import Recording

    recording = Recording(["true"], tmp_path / "run")
    new_run.write(recording)
    copied = recording.boot / run_folder.RECORDER / "run_folder.py"
    assert not copied.is_symlink() and copied.read_text() == Path(run_folder.__file__).read_text()


def test_no_other_module_spells_a_name_of_the_folder() -> None:
    found = [
        (str(file.relative_to(SOURCE)), text)
        for file in SOURCE.rglob("*.py")
        if file.resolve() != Path(run_folder.__file__).resolve()
        for text in spelled(file)
        if (text in WHOLE or PARTS.search(text)) and text not in ALONE.get(file, ())
    ]
    assert found == []


def spelled(file: Path) -> Iterator[str]:
    """The text constants of a module, what is filled into an f-string as '{}', without docstrings."""
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            said |= {id(part) for part in node.values}
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


@pytest.fixture
def lines(tmp_path: Path) -> list[dict[str, object]]:
    rank = Rank(3, 1, 8, run_folder.node(0), 2, "RANK")
    log = StepLog(rank, str(tmp_path))
    log.introduce(rank, "2.13.0")
    log.step(
        0, 5, '"duration":4,"own":0,"micro_steps":1,"optimizer":2,"data":1,"checkpoint":0,"gc":0,"window":0'
    )
    log.close()
    (path,) = tmp_path.glob(run_folder.STEP_LOGS_OF_RUN)
    named = re.fullmatch(run_folder.A_STEP_LOG, path.name)
    assert named and (named["rank"], named["attempt"]) == ("00003", "2")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_reader_knows_only_fields_that_the_writer_declares(lines: list[dict[str, object]]) -> None:
    first, step, *_ = lines
    assert tuple(first) == run_folder.RANK_FIELDS
    assert set(step) <= set(run_folder.STEP_FIELDS)
    assert set(reader.Who.__struct_fields__) <= set(run_folder.RANK_FIELDS)
    of_windows = {"kind", "exception", "state", "reason"}
    assert set(reader.StepLine.__struct_fields__) - of_windows <= {
        *run_folder.STEP_FIELDS,
        *run_folder.TOLD_FIELDS,
    }


def test_names_are_read_as_they_are_written() -> None:
    log = f"{run_folder.log_name(3, 2)}-p77-4"
    for name in (run_folder.trace(log, 5), f"{run_folder.trace(log, 5)}.gz"):
        found = re.fullmatch(run_folder.A_TRACE, name)
        assert found and found["log"] == log and int(found["rank"]) == 3
    for name in (run_folder.memory(log, 5), f"{run_folder.nsys_report(log, 5)}.sqlite"):
        found = re.match(run_folder.A_WINDOW, name)
        assert found and found["log"] == log and int(found["attempt"]) == 2
    found = re.fullmatch(run_folder.A_SEGMENT, run_folder.segment(12))
    assert found and int(found[1]) == 12
