"""Measured bandwidths as text: a line per operation or link, with the two numbers that describe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from lostflops.finding import milliseconds
from lostflops.report.words.safe import one_line
from lostflops.units import written

from .links import grid


def collectives(bandwidths: pl.DataFrame, about: Mapping[str, str], remarks: Sequence[str]) -> list[str]:
    """A line per operation and group: its time at the smallest size, its best bus bandwidth and where."""
    return list(_collectives(bandwidths, about, remarks))


def _collectives(bandwidths: pl.DataFrame, about: Mapping[str, str], remarks: Sequence[str]) -> Iterator[str]:
    if about:
        yield ", ".join(f"{name} {one_line(value)}" for name, value in about.items())
    timed = bandwidths.filter(pl.col("time").is_not_null())
    for (size, hosts), group in timed.group_by("group_size", "hosts", maintain_order=True):
        yield ""
        yield f"{_many(size, 'rank')} on {_many(hosts, 'host')}"
        by = ["tool", "operation", "in_place"]
        body: list[list[str]] = []
        for (tool, operation, in_place), rows in group.group_by(by, maintain_order=True):
            first = rows.sort("bytes").row(0, named=True)
            best = (
                rows.filter(pl.col("bus_bandwidth").is_not_null())
                .sort("bus_bandwidth", descending=True)
                .head(1)
            )
            wrong = rows.filter(~pl.col("correct")).height
            body.append(
                [
                    str(operation),
                    "" if in_place is None else "in place" if in_place else "out of place",
                    str(tool),
                    milliseconds(first["time"]),
                    _bytes(first["bytes"]),
                    *_best(best),
                    f"WRONG at {_many(wrong, 'size')}"
                    if wrong
                    else ""
                    if first["correct"] is None
                    else "correct",
                ]
            )
        yield from grid(
            [
                "operation",
                "buffers",
                "tool",
                "time",
                "at size",
                "bus GB/s",
                "algorithm GB/s",
                "at size",
                "result",
            ],
            body,
        )
    failed = bandwidths.filter(pl.col("remark").is_not_null())
    for row in failed.iter_rows(named=True):
        yield f"not measured: {row['operation']} at {_bytes(row['bytes'])}: {one_line(row['remark'])}"
    yield from (f"note: {one_line(remark)}" for remark in remarks)
    if timed["group_size"].max() == 1:
        yield "note: a single rank sends nothing, so its bus bandwidth is 0"


def _best(best: pl.DataFrame) -> list[str]:
    if best.is_empty():
        return ["–", "–", "–"]
    row = best.row(0, named=True)
    return [f"{row['bus_bandwidth']:.3g}", f"{row['algorithm_bandwidth']:.3g}", _bytes(row["bytes"])]


def links(
    bandwidths: pl.DataFrame,
    cards: Sequence[Mapping[str, Any]],
    about: Mapping[str, str],
    remarks: Sequence[str],
) -> list[str]:
    """A line per link, memory and memory node: latency, bandwidth, and from which size it reaches half."""
    return list(_links(bandwidths, cards, about, remarks))


def _links(
    bandwidths: pl.DataFrame,
    cards: Sequence[Mapping[str, Any]],
    about: Mapping[str, str],
    remarks: Sequence[str],
) -> Iterator[str]:
    if about:
        yield ", ".join(f"{name} {one_line(value)}" for name, value in about.items())
        yield ""
    header = [
        "link",
        "GPU",
        "peer",
        "host memory",
        "node",
        "tool",
        "",
        "latency",
        "GB/s",
        "half speed from",
        "spread",
    ]
    body = [
        [
            card["operation"],
            card["device"] or "",
            card["peer"] or "",
            card["host_memory"] or "",
            "" if card["numa"] is None else str(card["numa"]),
            card["tool"],
            "both ways" if card["both"] else "",
            "–" if card["latency"] is None else milliseconds(card["latency"]),
            f"{card['bandwidth']:.4g}",
            "–" if card["half_size"] is None else _bytes(card["half_size"]),
            "–" if card["spread"] is None else f"{100 * card['spread']:.0f} %",
        ]
        for card in cards
    ]
    if body:
        used = [n for n in range(len(header)) if any(row[n] for row in body)]
        yield from grid([header[n] for n in used], [[row[n] for n in used] for row in body])
    for row in bandwidths.filter(pl.col("remark").is_not_null()).iter_rows(named=True):
        yield f"not measured: {row['operation']}: {one_line(row['remark'])}"
    yield from (f"note: {one_line(remark)}" for remark in remarks)


def _many(number: object, noun: str) -> str:
    return f"an unknown number of {noun}s" if number is None else f"{number} {noun}{'s' * (number != 1)}"


def _bytes(number: int | None) -> str:
    return "–" if number is None else written(number)
