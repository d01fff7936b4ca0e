"""Memory snapshots become allocations with totals and owners; nothing that their pickles say is executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lostflops.errors import NotATrace
from lostflops.ingest import job
from lostflops.session import Answer, Session

TRAIN = [
    {"filename": "/home/someone/train.py", "line": 9, "name": "forward"},
    {"filename": "/home/someone/train.py", "line": 30, "name": "main"},
]
ADAM = [{"filename": "/usr/lib/python3.12/site-packages/torch/optim/adam.py", "line": 4, "name": "step"}]


def event(action: str, addr: int, size: int, time: int, frames: object = ()) -> dict[str, Any]:
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": time,
        "frames": list(frames or ()),
    }  # pyright: ignore[reportArgumentType, reportCallIssue]


SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 1000,
            "total_size": 512,
            "blocks": [
                {"address": 1000, "size": 100, "state": "active_allocated", "frames": ADAM},
                {"address": 1100, "size": 60, "state": "active_allocated", "frames": TRAIN},
                {"address": 1160, "size": 352, "state": "inactive", "frames": []},
            ],
        }
    ],
    "device_traces": [
        [
            event("alloc", 1100, 40, 7, TRAIN),
            event("free_requested", 1100, 40, 8),
            event("free_completed", 1100, 40, 9),
            event("segment_alloc", 1256, 256, 10),
            event("alloc", 1200, 90, 11, TRAIN),
            event("alloc", 1100, 60, 12, TRAIN),
            event("free_requested", 1200, 90, 13),
            event("oom", 0, 4096, 14),
        ]
    ],
}


def written(folder: Path, content: object) -> Path:
    path = folder / "snapshot_rank3.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def asked(path: Path, folder: Path, name: str) -> pl.DataFrame:
    said = Session(job.open(path, output=folder / "RUN")).run(name)
    assert isinstance(said, Answer), said
    return said.table


def test_totals_are_reckoned_back_from_what_is_alive(tmp_path: Path) -> None:
    trace = job.open(written(tmp_path, SNAPSHOT), output=tmp_path / "RUN")
    rows = trace.table("allocations")
    assert rows is not None
    found = rows.collect().sort("start", "bytes", descending=[False, True])
    assert found.select("rank", "bytes", "allocated", "reserved").rows() == [
        (3, 100, 100, 256),  # older than the history
        (3, 40, 140, 256),
        (3, -40, 100, 256),
        (3, 90, 190, 512),
        (3, 60, 250, 512),
        (3, -90, 160, 512),
    ]
    assert (found["start"] - found["start"].min()).to_list() == [0, 0, 1000, 4000, 5000, 6000]
    text = "\n".join(found["stack"].cast(pl.String).drop_nulls())
    assert "train.py(30): main;train.py(9): forward" in text
    assert "torch/optim/adam.py(4): step" in text
    assert "someone" not in text


def test_a_block_is_as_large_as_was_asked_for(tmp_path: Path) -> None:
    """Events hold what was asked for, and blocks also what that was rounded up to."""
    of_512 = {"size": 512, "state": "active_allocated"}
    blocks = [
        {"address": 1000, "requested_size": 100, "frames": ADAM, **of_512},
        {"address": 1512, "requested_size": 40, "frames": TRAIN, **of_512},
    ]
    segments = [{"device": 0, "address": 1000, "total_size": 2048, "blocks": blocks}]
    events = [event("alloc", 1512, 40, 7, TRAIN)]
    path = written(tmp_path, {"segments": segments, "device_traces": [events]})
    rows = job.open(path, output=tmp_path / "RUN").table("allocations")
    assert rows is not None
    assert rows.select("bytes", "allocated").collect().rows() == [(100, 100), (40, 140)]


def test_the_peak_of_a_snapshot_has_owners(tmp_path: Path) -> None:
    peak = asked(written(tmp_path, SNAPSHOT), tmp_path, "memory_peak_owners")
    assert peak.select("frame", "blocks", "bytes").rows() == [
        ("train.py(9): forward", 2, 150),
        ("torch/optim/adam.py(4): step", 1, 100),
    ]


class Runs:
    """What a hostile pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"segments": Runs(), "device_traces": []}),
        b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.",
        b"\x80\x04\x82\x01.",  # an extension
        b"\x80\x04U\x01aQ.",  # something outside of it
        pickle.dumps(SNAPSHOT)[:-9],
        pickle.dumps({"segments": []}),
        pickle.dumps({"segments": [], "device_traces": []}),
        pickle.dumps({"segments": {"a": 1}, "device_traces": [[{"action": 5, "addr": "x"}], 7]}),
        b"\x80\x04]r\xff\xff\xff\xff.",  # an index that would take 64 GB
        b"\x80\x04\x8a\xff" + b"\xff" * 9,
    ],
)
def test_whatever_is_no_snapshot_is_refused_and_not_run(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(NotATrace):
        job.open(path, output=tmp_path / "RUN")
    assert not (tmp_path / "ran").exists()


def test_a_snapshot_in_a_folder_of_traces_is_left_alone(tmp_path: Path) -> None:
    written(tmp_path, SNAPSHOT)
    assert job.find([written(tmp_path, SNAPSHOT)]) != []
    with pytest.raises(Exception, match="no trace"):
        job.find([tmp_path])


DEEP = b"]" * 50_000 + b"a" * 49_999  # a list in a list in a list, as a pickle's instructions
LARGE = 2**62
OF_BLOCKS = {"address": 2**64 - 8, "total_size": 16}


@pytest.mark.parametrize(
    ("segments", "events"),
    [
        ([], [event("alloc", 1, 1, LARGE)]),
        ([], [event("alloc", 1, 8, 5), event("alloc", 2, LARGE, 6), event("alloc", 3, LARGE, 7)]),
        ([], [event("alloc", 2**70, 8, -5)]),
        ([{**OF_BLOCKS, "device": 2**40, "blocks": [{"size": 8, "state": "active_allocated"}]}], []),
        ([{**OF_BLOCKS, "blocks": [{"size": 8, "state": "active_allocated"}] * 2}], []),
        ([], [event("alloc", 1, 8, 5, [{"filename": "DEEP", "name": 7, "line": "x"}])]),
        ([], [event("alloc", 1, 8, 5, [[], None, 3])]),
        (7, {"alloc": 1}),
    ],
)
def test_impossible_numbers_and_types_are_left_out(segments: object, events: object, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    content = pickle.dumps({"segments": segments, "device_traces": [events]}, protocol=3)
    path.write_bytes(content.replace(b"X\x04\x00\x00\x00DEEP", DEEP))
    try:
        rows = job.open(path, output=tmp_path / "RUN").table("allocations")
    except NotATrace as error:
        assert "neither a history nor a block" in error.message
    else:
        assert rows is not None
        assert all(0 <= total <= 16 for (total,) in rows.select("allocated").collect().rows())
