"""Spans for OpenTelemetry: exact times since 1970, and ranges within ranges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lostflops
from stored_runs import made


def test_spans_have_their_parents_times_and_attributes(tmp_path: Path) -> None:
    outer = {"rank": 3, "thread": 5, "nested": True, "complete": True}
    (tmp_path / "run").mkdir()
    trace = made(
        tmp_path / "run",
        {
            "ranks": [{"rank": 3, "start": 0, "end": 99, "host": 1, "device": 4, "device_kind": "gpu"}],
            "steps": [{"rank": 3, "start": 0, "end": 90, "step": 7, "complete": True}],
            "ranges": [
                {**outer, "start": 10, "end": 60, "name": 'say "hi"'},
                {**outer, "start": 20, "end": 30, "name": "inner", "domain": "mine"},
            ],
            "collectives": [
                {"rank": 3, "start": 40, "end": 55, "arrival": 40, "kind": "all-reduce", "group": "0 [3, 4]",
                 "bytes_in": 77, "evidence": 1, "name": "nccl"}
            ],
        },
        origin=1_700_000_000_000_000_123,
    )  # fmt: skip
    lostflops.write(trace, tmp_path / "x.otlp.json")
    (rank,) = json.loads((tmp_path / "x.otlp.json").read_text())["resourceSpans"]
    told = {a["key"]: a["value"] for a in rank["resource"]["attributes"]}
    assert told["lostflops.label"] == {"stringValue": "rank 3 (node 1, GPU 4)"}
    spans: dict[str, Any] = {span["name"]: span for span in rank["scopeSpans"][0]["spans"]}
    assert set(spans) == {"rank 3", "step 7", 'say "hi"', "inner", "all-reduce"}
    ids = {span["spanId"]: name for name, span in spans.items()}
    assert len(ids) == 5
    parents = {name: ids.get(span.get("parentSpanId")) for name, span in spans.items()}
    assert parents == {
        "rank 3": None, "step 7": "rank 3", 'say "hi"': "rank 3", "inner": 'say "hi"', "all-reduce": "rank 3",
    }  # fmt: skip
    assert spans["inner"]["startTimeUnixNano"] == "1700000000000000143"
    assert spans["inner"]["endTimeUnixNano"] == "1700000000000000153"
    assert len({span["traceId"] for span in spans.values()}) == 1
    assert {"key": "lostflops.bytes_in", "value": {"intValue": "77"}} in spans["all-reduce"]["attributes"]
    assert all(len(span["spanId"]) == 16 and len(span["traceId"]) == 32 for span in spans.values())
