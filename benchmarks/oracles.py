"""Published cases that lostflops must reproduce, on any folder of the same format.

    python benchmarks/oracles.py stragglers FOLDER CASE    ByteDance's trace-CASE.parquet: S and its parts
    python benchmarks/oracles.py pipeline FOLDER           Primus' pp_rank_N.json: the split of the step
    python benchmarks/oracles.py config CSV                vTrain's measured runs: errors beside baselines

Where the cases come from: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI
2025, Apache-2.0), AMD's Primus (MIT), KAIST's vTrain (MIT). Their files stay where they are.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.replay.pipeline.split import Split, split
from lostflops.replay.pipeline.step import step_time
from lostflops.replay.stragglers.operations import operations
from lostflops.replay.stragglers.slowdown import Slowdown, slowdown

WARM_UP = 4  # iterations of a pipelined run that are left out
MS = 1e6  # ns
MOST_HOP = 3  # an interleaved stage sends and receives two ways at once: at worst so many times the hop

Real = npt.NDArray[np.float64]


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = parser.add_subparsers(required=True)
    for name, run, given in (
        ("stragglers", stragglers, ("folder", "case")),
        ("pipeline", pipeline, ("folder",)),
        ("config", config, ("csv",)),
    ):
        kind = kinds.add_parser(name)
        for one in given:
            kind.add_argument(one, type=str if one == "case" else Path)
        kind.set_defaults(run=run, given=given)
    options = parser.parse_args()
    try:
        options.run(*(getattr(options, one) for one in options.given))
    except BrokenPipeError:  # who reads it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, pl.exceptions.PolarsError, KeyError, ValueError) as error:
        print(f"These files cannot be read as a case of {options.run.__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def straggler_case(folder: Path, case: str) -> Slowdown:
    """The slowdown of a recorded job in ByteDance's format."""
    rows = pl.read_parquet(folder / f"trace-{case}.parquet")

    def ns(name: str) -> pl.Expr:
        return (pl.col(name).cast(pl.Float64) * 1e9).round().cast(pl.Int64)

    return slowdown(
        operations(
            rows.select(
                "step",
                "dp_rank",
                "stage",
                type=pl.col("optype").cast(pl.String),
                start=ns("start_ts"),
                duration=ns("duration"),
                sequence="seq_id",
                chunk="mc",
            )
        )
    )


def stragglers(folder: Path, case: str) -> None:
    found = straggler_case(folder, case)
    print(f"S                 {found.slowdown:.6f}")
    print(f"launch slowdown   {found.launch_slowdown:.6f}")
    print(f"step              measured {found.measured / 1e9:.6f} s, replayed {found.replayed / 1e9:.6f} s,")
    print(f"                  ideal {found.ideal / 1e9:.6f} s")
    for title, parts in (("type", found.by_type), ("rank", found.by_rank), ("stage", found.by_stage)):
        for name, value in parts.items():
            print(f"S by {title:<12} {value:.6f}  {name}")
    for rank, stage in found.slowest:
        print(f"slowest worker    {found.worker(rank, stage):.6f}  data-parallel rank {rank}, stage {stage}")
    for name, share in (("M_W", found.of_workers), ("M_S", found.of_last_stage)):
        print(f"{name:<17} {share.removal:.6f}  by removal; {share.addition:.6f} by addition")


def pipeline_case(folder: Path) -> list[tuple[Split, dict[str, npt.NDArray[np.int64]]]]:
    """Each iteration after the warm-up: its split in ms, and how long its passes took in ns."""
    files = sorted(folder.glob("pp_rank_*.json"), key=lambda f: int(f.stem.rpartition("_")[2]))
    ranks: list[dict[str, Any]] = [json.loads(file.read_text()) for file in files]
    if not ranks:
        raise ValueError(f"no pp_rank_N.json lies in {folder}")
    found = list[tuple[Split, dict[str, npt.NDArray[np.int64]]]]()
    for iteration in sorted(ranks[0], key=int)[WARM_UP:]:
        passes = {
            kind: np.array(
                [np.subtract(r[iteration][f"{name}_end"], r[iteration][f"{name}_start"]) for r in ranks]
            )
            for kind, name in (("F", "fwd"), ("B", "bwd"))
        }
        step = max(r[iteration]["total"] for r in ranks)
        computes = (passes["F"] + passes["B"]).sum(axis=1)
        in_ns = {kind: (times * MS).round().astype(np.int64) for kind, times in passes.items()}
        found.append((split(step, computes, passes["F"].shape[1]), in_ns))
    return found


def pipeline(folder: Path) -> None:
    found = pipeline_case(folder)
    step = float(np.median([s.step for s, _ in found]))
    print(f"step       {step:9.1f} ms, median of {len(found)} iterations")
    for name in ("useful", "imbalance", "schedule", "rest"):
        parts = np.array([[getattr(s, name), 100 * getattr(s, name) / s.step] for s, _ in found])
        ms, share = np.median(parts, axis=0).tolist()
        print(f"{name:<10} {ms:9.1f} ms {share:5.1f} %")
    free = _replayed(found, "1f1b", 0)
    hop = _fitted_hop(found, step)
    print(
        f"replayed   {free:9.1f} ms as one forward, one backward with free transfers: {free / step - 1:+.1%};"
    )
    print(f"           a hop of {hop / MS:.2f} ms between stages meets the measured step")
    stages, microbatches = found[0][1]["F"].shape
    if microbatches % stages == 0:
        low, likely, high = (_replayed(found, "interleaved", h, 2) for h in (0, hop, MOST_HOP * hop))
        print(f"predicted  {likely:9.1f} ms with two interleaved chunks a stage, {low:.1f} to {high:.1f}:")
        print(
            "           a chunk is taken for half of its stage, and hops for free up to three times as long."
        )
        print("           A chunk's own overhead is left out, so it errs on the short side.")


def _replayed(found: list[Any], schedule: str, hop: int, chunks: int = 1) -> float:
    times = [step_time(schedule, passes, hop=hop, chunks=chunks) / MS for _, passes in found]
    return float(np.median(times))


def _fitted_hop(found: list[Any], step: float) -> int:
    """The hop with which the unchanged schedule takes as long as was measured, by halving, ns."""
    low, high = 0, int(step * MS)
    while high - low > 1000:
        middle = (low + high) // 2
        low, high = (middle, high) if _replayed(found, "1f1b", middle) < step else (low, middle)
    return low


def gpt_flops(batch: Real, sequence: Real, layers: Real, width: Real) -> Real:
    """Operations of an iteration of GPT with 51,200 words that runs all layers again (Megatron-LM)."""
    words = 51_200 / (16 * layers * width)
    return 96 * batch * sequence * layers * width**2 * (1 + sequence / (6 * width) + words)


def config_case(csv: Path) -> tuple[pl.DataFrame, dict[str, Real]]:
    """The runs, and the step in ms by each predictor; the baselines have seen the runs, ours has not."""
    import planner  # it brings the whole planner, which the other cases do not need

    runs = planner.predicted(csv)
    get = {name: runs[name].to_numpy().astype(np.float64) for name in runs.columns}
    b, s, layers, h = (get[c] for c in ("global_batch", "sequence", "layers", "hidden"))
    flops = gpt_flops(b, s, layers, h)
    microbatches = b / (get["data"] * get["batch"])
    gpus = get["tensor"] * get["data"] * get["pipeline"]
    perfect = 1e3 * flops / gpus / 312e12
    features = [
        flops / gpus,
        1 + (get["pipeline"] - 1) / microbatches,
        *(get[c] for c in ("tensor", "data", "batch", "hidden")),
    ]
    x = np.column_stack([np.ones(runs.height), *map(np.log, features)])
    y = np.log(get["measured"])
    hat = x @ np.linalg.pinv(x)
    left_out = y - (y - hat @ y) / (1 - np.diag(hat))
    return runs, {
        "lostflops plan": get["predicted"],
        "constant utilisation": perfect / np.median(perfect / get["measured"]),
        "log-linear, leave one out": np.exp(left_out),
    }


def config(csv: Path) -> None:
    runs, predictors = config_case(csv)
    print(f"{runs.height} measured runs        mean error  median  order within groups  slower than the best")
    for name, ms in predictors.items():
        error = np.abs(ms / runs["measured"].to_numpy() - 1)
        groups = (
            runs.with_columns(guess=pl.Series(ms))
            .group_by("billions", "gpus")
            .agg(
                order=pl.corr("guess", "measured", method="spearman"),
                regret=pl.col("measured").sort_by("guess").first() / pl.col("measured").min() - 1,
                runs=pl.len(),
            )
            .filter(pl.col("runs") > 2)
        )
        order, regret = groups.select(pl.col("order").median(), pl.col("regret").max()).row(0)
        rank = "all alike" if order is None or np.isnan(order) else f"{order:.3f}"
        print(f"{name:<26} {error.mean():8.1%} {np.median(error):8.1%} {rank:>14} {regret:20.1%}")


if __name__ == "__main__":
    sys.exit(main())
