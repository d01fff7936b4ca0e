"""The planner beside published and measured numbers, each against its limit: memory, decoding, training.

    python benchmarks/planner.py [ground_truth_multi.csv]

With vTrain's 109 measured runs of GPT on A100 also the error of their steps, and the layout that is picked.
Those are VIA Research Group's (KAIST, MIT licence, github.com/VIA-Research/vTrain) and stay where they are;
`planner.json` beside this file holds what docs/planning.md and benchmarks/README.md show.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from lostflops.plan import published_speeds, published_tables
from lostflops.plan.train.job import Prediction

SUMMARY = Path(__file__).with_suffix(".json")
README = Path(__file__).with_name("README.md")
BLOCK = re.compile(r"(<!-- generated: planner -->\n).*?(\n<!-- end -->)", re.DOTALL)
MEMORY, TRAINING, DECODING = 0.05, 0.15, 0.20  # limits of the deviation
NAMES = (
    "billions", "gpus", "global_batch", "batch", "hidden", "heads", "layers", "sequence", "tensor", "data",
    "pipeline", "measured",
)  # fmt: skip
JOB = ("hidden", "heads", "layers", "sequence", "tensor", "data", "pipeline", "batch", "global_batch")


def predicted(path: Path) -> pl.DataFrame:
    """The runs, each with its predicted milliseconds."""
    runs = pl.read_csv(path, new_columns=list(NAMES))
    steps = [
        Prediction(published_speeds.vtrain_job(**{name: int(run[name]) for name in JOB})).step_ns / 1e6
        for run in runs.iter_rows(named=True)
    ]
    return runs.with_columns(predicted=pl.Series(steps))


def summary(runs: pl.DataFrame) -> list[dict[str, float]]:
    """By model: runs, median error, and how much slower the layout picked is than the fastest measured."""
    error = (pl.col("predicted") / pl.col("measured") - 1).abs()
    picked = pl.col("measured").sort_by("predicted").first() / pl.col("measured").min() - 1
    by_model = runs.group_by("billions", "gpus", maintain_order=True).agg(
        runs=pl.len(),
        median_error=error.median(),
        bias=(pl.col("predicted") / pl.col("measured") - 1).median(),
        picked_slower=picked,
        order=pl.corr("predicted", "measured", method="spearman"),
    )
    whole = runs.select(
        billions=pl.lit(None, pl.Float64),
        gpus=pl.lit(None, pl.Int64),
        runs=pl.len(),
        median_error=error.median(),
        bias=(pl.col("predicted") / pl.col("measured") - 1).median(),
        picked_slower=pl.lit(None, pl.Float64),
        order=pl.corr("predicted", "measured", method="spearman"),
    )
    return pl.concat([by_model, whole], how="vertical_relaxed").to_dicts()


def published() -> list[dict[str, Any]]:
    """Every published number beside the planner's, with the limit of its kind."""
    sizes = [
        (row.table, row.name, row.published, row.computed, row.unit, MEMORY)
        for row in published_tables.rows()
    ]
    speeds = [
        (
            row.table,
            f"{row.name}, {row.how}",
            row.published,
            row.predicted,
            "",
            DECODING if row.table == published_speeds.DECODING else TRAINING,
        )
        for row in published_speeds.rows()
    ]
    return [
        {
            "table": table,
            "name": name,
            "published": said,
            "predicted": ours,
            "unit": unit,
            "deviation": None if ours is None else ours / said - 1,
            "limit": limit,
        }
        for table, name, said, ours, unit, limit in (*sizes, *speeds)
    ]


def tables(rows: list[dict[str, Any]], models: list[dict[str, Any]]) -> Iterator[str]:
    """In Markdown: a line for each source, then one for each number."""
    yield "| source | numbers | limit | median deviation | largest | within the limit |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for source in dict.fromkeys(row["table"] for row in rows):
        of_it = [row for row in rows if row["table"] == source]
        off = [abs(row["deviation"]) for row in of_it if row["deviation"] is not None]
        within = sum(deviation <= of_it[0]["limit"] for deviation in off)
        yield (
            f"| {source} | {len(of_it)} | {of_it[0]['limit']:.0%} | {median(off):.1%} | {max(off):.1%} "
            f"| {within} of {len(of_it)} |"
        )
    *each, whole = models
    slowest = max(each, key=lambda model: model["picked_slower"])
    yield (
        f"| vTrain, steps of {whole['runs']} runs | {whole['runs']} | 10% (median) "
        f"| {whole['median_error']:.1%} | | {'yes' if whole['median_error'] <= 0.10 else 'no'} |"
    )
    picked = sum(model["picked_slower"] <= 0.03 for model in each)
    yield (
        f"| vTrain, the layout picked against the fastest | {len(each)} | 3% "
        f"| {median(model['picked_slower'] for model in each):.1%} | {slowest['picked_slower']:.1%} "
        f"| {picked} of {len(each)} |"
    )
    yield from ("", "<details><summary>Number by number</summary>", "")
    yield "| source | number | published | predicted | deviation |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for row in rows:
        yield _line(row)
    yield from ("", "</details>")


def _line(row: Mapping[str, Any]) -> str:
    said = f"{row['published']:,.6g} {row['unit']}".strip()
    if row["deviation"] is None:
        return f"| {row['table']} | {row['name']} | {said} | not reproduced | |"
    late = "" if abs(row["deviation"]) <= row["limit"] else " (over)"
    deviation = f"{row['deviation']:+.1%}{late}"
    return f"| {row['table']} | {row['name']} | {said} | {row['predicted']:,.4g} | {deviation} |"


def main() -> None:
    known: list[dict[str, Any]] = json.loads(SUMMARY.read_text())["models"]
    models = summary(predicted(Path(sys.argv[1]))) if sys.argv[1:] else known
    rows = published()
    content = {"kind": "planner against published numbers", "models": models, "published": rows}
    SUMMARY.write_text(json.dumps(content, indent=1) + "\n")
    block = "\n".join(tables(rows, models))
    README.write_text(BLOCK.sub(lambda found: f"{found[1]}{block}{found[2]}", README.read_text()))
    print(block.partition("\n\n")[0])


if __name__ == "__main__":
    main()
