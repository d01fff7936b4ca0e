"""Which ranks' transfers take longer than those of the same size between others."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name, Ratio, Text, Time, Typical
from lostflops.finding import Finding, Verdict, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.transfers import ALIKE, SLOWER, beyond_usual, transfers
from lostflops.tables import Ranks

FEWEST = 3  # transfers that make a median
FROM_BYTES = 1 << 18  # smaller ones take their latency, whatever the link
WORTH_SAYING = 0.01  # of the step: the page adds what other ranks wait meanwhile
MOST_NAMED, MOST_LINKS = 6, 2  # ranks of a link, links


def _sends(pair: tuple[int, int], nth: int, moves: int) -> list[dict[str, object]]:
    """A send that lasts `moves` ns, and its receive."""
    at = {"start": 100 * nth, "end": 100 * nth + moves, "bytes_in": 1 << 20, "group": "pp"}
    return [
        {"rank": pair[0], "peer": pair[1], "kind": "send", **at},
        {"rank": pair[1], "peer": pair[0], "kind": "receive", **at},
    ]


@recipe(
    question="Do transfers of one size take longer among some ranks than among others?",
    scope="job",
    plot=Bars(x="among", y=("latency", "usual")),
    columns={
        "among": Text("ranks that take part"),
        "kind": Name("operation; a send and its receive are 'send'"),
        "bytes": Bytes("size"),
        "size": Count("number of ranks that take part"),
        "hosts": Count("machines that they run on; null where not known"),
        "calls": Count("transfers"),
        "latency": Typical("median over transfers of their shortest stay on any rank"),
        "usual": Typical(
            "the same among other ranks on as many machines: what a quarter of those take at most"
        ),
        "ratio": Ratio("latency / usual"),
        "blamed": Id("the one rank with which all such transfers are slow; null where there is none"),
        "lost_per_step": Time("transfer per step beyond the usual with nothing computed, mean of ranks"),
        "step_share": Ratio("the same as a share of step time"),
        "at_most": Time("transfer per step beyond the usual, hidden or not, each transfer counted once"),
    },
    examples=[
        Example(
            "between ranks 2 and 3 the same takes four times as long as between 0 and 1, and 1 and 2",
            given={
                "collectives": [
                    row
                    for nth in range(3)
                    for pair, moves in (((0, 1), 9), ((1, 2), 11), ((2, 3), 40))
                    for row in _sends(pair, nth, moves)
                ],
                "kernels": [],
                "steps": [{"rank": rank, "start": 0, "end": 300} for rank in range(4)],
                "ranks": [{"rank": rank, "world_size": 4, "clock_error": 0} for rank in range(4)],
            },
            expect=[
                {
                    "among": among,
                    "kind": "send",
                    "bytes": 1 << 20,
                    "size": 2,
                    "hosts": None,
                    "calls": 3,
                    "latency": latency,
                    "usual": usual,
                    "ratio": latency / usual,
                    "blamed": blamed,
                    "lost_per_step": lost,
                    "step_share": share,
                    "at_most": at_most,
                }
                for among, latency, usual, blamed, lost, share, at_most in (
                    ("2, 3", 40, 9, 3, 45, 0.15, 93),
                    ("1, 2", 11, 9, None, 3, 0.01, 6),
                    ("0, 1", 9, 11, None, 0, 0.0, 0),
                )
            ],
        ),
    ],
)
def communication_slow_links(
    communication_matches: pl.LazyFrame, compute_gaps: pl.LazyFrame, step_totals: pl.LazyFrame, ranks: Ranks
) -> pl.LazyFrame:
    """Compare transfers of one kind and size among different ranks, the costliest difference first.

    Only what is the same but for the ranks is compared: the operation, its size, the number of ranks and of
    machines. So a job with one group of ranks has nothing to compare.
    """
    of = [*ALIKE]
    moving = transfers(communication_matches, ranks)
    calls = moving.unique("instance", keep="any")
    links = (
        calls.group_by("among", *of)
        .agg(pl.col("members").first(), pl.len().cast(pl.Int64).alias("calls"), pl.col("latency").median())
        .filter(pl.col("calls") >= FEWEST)
    )
    others = links.select(*of, _other="among", _takes="latency")
    usual = (
        links.join(others, on=of, nulls_equal=True)
        .filter(pl.col("among") != pl.col("_other"))
        .group_by("among", *of)
        # Of two others the faster: the blamed rank may take part in the slower.
        .agg(usual=pl.col("_takes").quantile(0.25, "lower"))
    )
    compared = links.join(usual, on=["among", *of], nulls_equal=True).with_columns(
        ratio=pl.col("latency") / pl.col("usual")
    )
    # What is computed meanwhile hides the usual first.
    told = moving.join(
        compared.select("among", *of, "ratio"), on=["among", *of], how="left", nulls_equal=True
    ).with_columns(slow=(pl.col("ratio") >= SLOWER).fill_null(False))
    longer = (
        told.drop_nulls("ratio")
        .with_columns(start=pl.col("end") - beyond_usual())
        .sort("rank", "start", "end", "among", *of)
    )
    # While another moves that is as fast as ever, a slow one costs nothing.
    ordinary = told.filter(~pl.col("slow")).select("rank", "start", "end").lazy()
    cover = intervals.overlay({"gap": compute_gaps.filter("in_step"), "ordinary": ordinary}, ["rank"])
    bare = intervals.inside(
        longer.select("rank", "among", *of, "slow", "end", start=_since_earlier_ones("rank", "slow")).lazy(),
        cover,
        {"alone": (pl.col("gap") > 0) & (pl.col("ordinary") == 0), "all": pl.col("gap") > 0},
    ).with_columns(bare=pl.when("slow").then("alone").otherwise("all"))
    spent = bare.group_by("among", *of).agg(pl.col("bare").sum()).collect()
    present, steps, time = (
        step_totals.select(pl.len(), pl.col("steps").sum(), pl.col("step_time").sum()).collect().row(0)
    )
    lost = pl.col("bare").fill_null(0)
    return (
        compared.join(spent, on=["among", *of], how="left", nulls_equal=True)
        .with_columns(
            pl.col("latency", "usual").round().cast(pl.Int64),
            blamed=pl.when(pl.col("ratio") >= SLOWER).then(pl.lit(_blamed(compared), pl.Int32)),
            lost_per_step=(lost // max(1, steps or 0)).cast(pl.Int64),
            step_share=lost / max(1, time or 0),
            at_most=(
                (pl.col("latency") - pl.col("usual")).clip(0) * pl.col("calls") * present / max(1, steps or 0)
            )
            .floor()
            .cast(pl.Int64),
        )
        .select(*communication_slow_links.columns)
        .sort("lost_per_step", "among", *of, descending=[True] + [False] * 5)
        .lazy()
    )


def _since_earlier_ones(*by: str) -> pl.Expr:
    """Where an interval begins that has no time of those before it: of a send and a receive at a time, a rank
    loses the longer one. Rows stand by start."""
    before = pl.col("end").cum_max().shift(1).over(*by)
    return pl.min_horizontal("end", pl.max_horizontal("start", before))


def _blamed(compared: pl.DataFrame) -> int | None:
    """The one rank that takes part in all slow transfers and in no others; None where there is none."""
    slow = pl.col("ratio") >= SLOWER
    all_slow = compared.filter(slow).height
    by_rank = (
        compared.explode("members")
        .group_by("members")
        .agg(slow=slow.sum(), others=(~slow).sum())
        .filter((pl.col("slow") == all_slow) & (pl.col("others") == 0))
    )
    return int(by_rank["members"][0]) if all_slow and by_rank.height == 1 else None


def _shortened(among: str) -> str:
    named = among.split(", ")
    return ", ".join(named[:MOST_NAMED]) + (", …" if len(named) > MOST_NAMED else "")


def _may_be_between_machines(table: pl.DataFrame) -> bool:
    """Whether all ranks have a slow link and a fast one, as within machines and between them.

    Where ranks run is then not known: where it is, only links of as many machines are compared.
    """
    if table["hosts"].count():
        return False
    each = table.select(pl.col("among").str.split(", "), slow=pl.col("ratio") >= SLOWER).explode("among")
    both = each.group_by("among").agg(both=pl.col("slow").any() & ~pl.col("slow").all())
    return both.height > 2 and bool(both["both"].all())


@communication_slow_links.finding(
    name="slow-link",
    verdict=Verdict("Held up by a slow link", "transfer over a slow link"),
    edit="even-links",
    also=("node-placement", "rank-exclusion"),
)
def a_link_is_slow(table: pl.DataFrame) -> Iterator[Finding]:
    slow = table.filter(pl.col("ratio") >= SLOWER)
    share = float(slow["step_share"].sum())
    # Where most are slow and no rank is to blame, it is the others that are fast.
    if share < WORTH_SAYING or (slow["blamed"].null_count() and 2 * slow.height > table.height):
        return
    if _may_be_between_machines(table):
        return
    worst, rank = slow.row(0, named=True), slow["blamed"][0]
    links = [_shortened(among) for among in slow["among"].unique(maintain_order=True)]
    beside = len(links) - MOST_LINKS
    more = f" and {beside} other link{'s' * (beside > 1)}" if beside > 0 else ""
    lost = int(slow["lost_per_step"].sum())
    among = ", and among ".join(links[:MOST_LINKS])
    who = f"with rank {rank}" if rank is not None else f"among ranks {among}{more}"
    times = f"{'up to ' if slow.height > 1 else ''}{slow['ratio'].max():.2g} times"
    yield Finding(
        name="slow-link",
        claim=f"Slow transfers {who} cost {milliseconds(lost)} per step ({percent(share, 1)}): they take "
        f"{times} as long as the same among other ranks.",
        gain="at most",
        cost_per_step=lost,
        # The longest chain of work passes a transfer once.
        ns_per_step=max(lost, int(slow["at_most"].sum())),
        evidence=tuple(
            f"{row['kind']} of {row['bytes'] / 1e6:.3g} MB among ranks {row['among']}: "
            f"{milliseconds(row['latency'])}, elsewhere {milliseconds(row['usual'])}"
            for row in slow.head(2).iter_rows(named=True)
        ),
        next=f"Look at the links of {f'rank {rank}' if rank is not None else 'these ranks'}: "
        "`nvidia-smi topo -m` and `nvidia-smi nvlink --status` on the host, rate and errors of the network "
        "port (`ibstat`, `perfquery`). Then measure them alone: `lostflops bench collectives`.",
        doubt=""
        if worst["hosts"] is not None
        else "Which machines these ranks run on was not recorded: ranks of one machine have faster links.",
        accounts=("communication.transfer",),
        rank=rank,
    )
