"""The planner beside published and measured numbers, each against its limit: memory, decoding, training.

    python benchmarks/planner.py [ground_truth_multi.csv]

With vTrain's 109 measured runs of GPT on A100 also the error of their steps, and the layout that is picked.
Its 1,440 runs on one node, `ground_truth_single.csv` beside them, give its card's rate and what a pass of a
layer takes whatever its microbatch; the 109 are predicted with both.
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
from lostflops.plan.train import layer_time
from lostflops.plan.train.job import Prediction

SUMMARY = Path(__file__).with_suffix(".json")
README = Path(__file__).with_name("README.md")
BLOCK = re.compile(r"(<!-- generated: planner -->\n).*?(\n<!-- end -->)", re.DOTALL)
MEMORY, TRAINING, DECODING = 0.05, 0.15, 0.20  # limits of the deviation
NAMES = (
    "billions", "gpus", "global_batch", "batch", "hidden", "heads", "layers", "sequence", "tensor", "data",
    "pipeline", "measured",
)  # fmt: skip
ONE_NODE = "ground_truth_single.csv"
JOB = ("hidden", "heads", "layers", "sequence", "tensor", "data", "pipeline", "batch", "global_batch")


def one_node(path: Path) -> tuple[float, float]:
    """FLOP/s in matrix products, and seconds of a layer's forward that no microbatch makes longer.

    Of GPT of width 2,048 without tensor ranks and recomputation: what 12 layers more take, by a microbatch's
    sequences. The rest of a step is the same with 24 layers and with 12, but for what is done once: of
    longer steps that is what no microbatch explains.
    """
    runs = pl.read_csv(path, new_columns=[name for name in NAMES if name != "billions"])
    alike = ["gpus", "global_batch", "batch", "data", "tensor", "pipeline"]
    plain = runs.filter(pl.col("hidden") == 2048, pl.col("tensor") == 1, pl.col("pipeline") == 1)
    few, many = (plain.filter(pl.col("layers") == layers) for layers in (12, 24))
    more = few.join(many, on=alike, suffix="_of_24").with_columns(
        microbatches=pl.col("global_batch") // (pl.col("data") * pl.col("batch")),
        twelve=pl.col("measured_of_24") - pl.col("measured"),
    )
    of_one = more.filter(pl.col("batch") == 1)
    each = pl.cov("microbatches", "twelve") / pl.col("microbatches").cast(pl.Float64).var()
    once = of_one.group_by("gpus").agg(once=pl.col("twelve").mean() - each * pl.col("microbatches").mean())
    layer = (pl.col("twelve") - pl.col("once")) / pl.col("microbatches") / 12
    found = more.filter(pl.col("batch") > 1).join(once, on="gpus").with_columns(layer=layer)
    slope = pl.cov("batch", "layer") / pl.col("batch").cast(pl.Float64).var()
    sequence, fixed = found.select(
        slope.alias("slope"), fixed=pl.col("layer").mean() - slope * pl.col("batch").mean()
    ).row(0)
    job = published_speeds.vtrain_job(2048, 16, 12, 1024, 1, 1, 1, 1, 1)
    work = layer_time.work(job.shape, 0, job.layout, job.sequence, 1, None, job.executed)
    products = sequence / 1e3 - 3 * layer_time.between(work.moved, job.gpu)
    operations = work.linear + work.linear_backward + (1 + layer_time.SCORES_BACKWARD) * work.attention
    return operations / products, fixed / 1e3 / 3


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
        (row.table, row.name, row.published, row.computed, row.unit, MEMORY, row.why)
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
            "",
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
            "why": why,
        }
        for table, name, said, ours, unit, limit, why in (*sizes, *speeds)
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
        return f"| {row['table']} | {row['name']} | {said} | | {row['why']} |"
    late = "" if abs(row["deviation"]) <= row["limit"] else f" (over): {row['why']}"
    deviation = f"{row['deviation']:+.1%}{late}"
    return f"| {row['table']} | {row['name']} | {said} | {row['predicted']:,.4g} | {deviation} |"


def main() -> None:
    known: list[dict[str, Any]] = json.loads(SUMMARY.read_text())["models"]
    models = summary(predicted(Path(sys.argv[1]))) if sys.argv[1:] else known
    for path in sys.argv[1:]:
        rate, fixed = one_node(Path(path).with_name(ONE_NODE))
        print(f"{ONE_NODE}: {rate / 1e12:.0f} TFLOP/s, {fixed * 1e6:.0f} us a forward\n")
    rows = published()
    content = {"kind": "planner against published numbers", "models": models, "published": rows}
    SUMMARY.write_text(json.dumps(content, indent=1) + "\n")
    block = "\n".join(tables(rows, models))
    README.write_text(BLOCK.sub(lambda found: f"{found[1]}{block}{found[2]}", README.read_text()))
    print(block.partition("\n\n")[0])


if __name__ == "__main__":
    main()
