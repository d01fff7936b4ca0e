"""The planner beside vTrain's 109 measured runs of GPT on A100: error of the step, and the layout it picks.

    python benchmarks/planner.py ground_truth_multi.csv

The measurements are VIA Research Group's (KAIST, MIT licence, github.com/VIA-Research/vTrain). They stay
where they are; `planner.json` beside this file holds the summary that docs/planning.md shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl

from lostflops.plan import published_speeds
from lostflops.plan.train.job import Prediction

SUMMARY = Path(__file__).with_suffix(".json")
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


def main() -> None:
    found = summary(predicted(Path(sys.argv[1])))
    SUMMARY.write_text(json.dumps({"kind": "planner against vTrain", "models": found}, indent=1) + "\n")
    for row in found:
        print(row)


if __name__ == "__main__":
    main()
