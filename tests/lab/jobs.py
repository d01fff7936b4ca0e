"""Which simulated jobs the first page is held against, and what it has to say of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from acceptance.cases import (
    ALLOCATOR,
    CHECKPOINT,
    COLLECTION,
    EXPOSED,
    LATE,
    LOADING,
    SYNC,
    Truth,
)
from lostflops.lab.simulate.faults import faults
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import Strategy, strategy
from lostflops.lab.simulate.truth import Culprit

STRATEGIES = (
    ("ddp", 8), ("ddp", 16), ("fsdp2", 8), ("zero1", 8), ("zero2-m2", 8), ("zero3", 8), ("tp2-dp4", 8),
    ("tp4-fsdp2-dp2", 8), ("pp4-m8", 4), ("pp2-dp4-gpipe-m6", 8), ("pp4-dp2-interleaved-v2-m4", 8),
    ("pp4-dp2-zb-m8", 8), ("tp2-pp2-dp2-m6", 8), ("tp2-pp2-dp4-m6", 16), ("ep4", 8), ("ep8", 8),
)  # fmt: skip
FAULTY, HEALTHY_JOBS = 200, 100
STRIDE = 37  # has no divisor in common with these numbers: neighbours differ
OF_RECORDING = ("clock-skew", "missing-ranks", "truncated-files")
HEALTHY = "healthy"


@dataclass(frozen=True)
class LabJob:
    """A job with a fault, or without one."""

    fault: str
    text: str
    ranks: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.text}, {self.ranks} ranks, seed {self.seed}"

    @property
    def exact(self) -> bool:
        """Whether its tables are compared with the truth, which takes as long as its page."""
        return self.seed == 0 and self.fault not in OF_RECORDING

    @property
    def strategy(self) -> Strategy:
        return strategy(self.text, self.ranks)

    @property
    def job(self) -> SimulatedJob:
        model = "qwen3-30b-a3b" if self.strategy.expert > 1 else "llama-3-8b"
        chunks = self.strategy.pipeline * self.strategy.chunks
        # One in each chunk, which many microbatches pass; and enough for nodes to have little left to reduce
        # when the backward pass ends.
        layers = chunks if chunks > 1 else 6 if self.ranks > 8 else 0
        return SimulatedJob(self.strategy, seed=self.seed, steps=3, warmup=1, model=model, layers=layers)


def jobs(faulty: int = FAULTY, healthy: int = HEALTHY_JOBS) -> Iterator[LabJob]:
    """So many jobs with faults and without, spread over all that fits together, and faults of recordings.

    They come mixed, so that any first part of them is a sample of all.
    """
    with_faults = [
        (fault, text, ranks)
        for text, ranks in STRATEGIES
        for fault, module in faults().items()
        if module.fits(strategy(text, ranks))
    ]
    suffered = [each for each in with_faults if each[0] not in OF_RECORDING]
    sorts = (
        [LabJob(*suffered[n % len(suffered)], n // len(suffered)) for n in range(faulty)],
        [LabJob(HEALTHY, *STRATEGIES[n % len(STRATEGIES)], n // len(STRATEGIES)) for n in range(healthy)],
        [LabJob(*each, 0) for each in with_faults if each[0] in OF_RECORDING],
    )
    in_turn = [((n * STRIDE % len(sort)) / len(sort), job) for sort in sorts for n, job in enumerate(sort)]
    yield from (job for _, job in sorted(in_turn, key=lambda each: each[0]))


def inherent(given: Strategy) -> str:
    """Findings that tell what the strategy costs any job, as an expression on their names."""
    names: list[str] = []
    if given.pipeline > 1:
        names.append("^pipeline-bubble")
    if given.tensor > 1 or given.expert > 1 or given.data.startswith("zero"):
        names.append("^communication-exposed")
    return "|".join(names)


def truth(given: LabJob, culprit: Culprit | None) -> Truth:
    """What the first finding has to say."""
    ranks = culprit.ranks if culprit else ()
    one = ranks[0] if len(ranks) == 1 else None
    blamed = (rf"\branks? (?:\d+, )*{one}\b",) if one is not None else ()
    computes = r"comput|kernel|gpu|slower|clock"
    match given.fault:
        case "slow-rank" | "slow-gpu":
            return Truth(f"rank {one}'s slow GPU", f"{LATE}|stage", (*blamed, computes), rank=one)
        case "stage-imbalance":
            some = "|".join(map(str, ranks))
            words = (rf"(?i)\bstage\b.*\b(?:{some})\b|\branks? (?:\d+, )*(?:{some})\b.*stage",)
            return Truth(f"stage {culprit.says['stage'] if culprit else 0}", f"{LATE}|stage|bubble", words)
        case "length-imbalance":
            # Each rank's batches differ from step to step, so no one rank is the cause.
            return Truth("uneven batches", LATE, (r"take turns|for ranks \d",), never=r"^Rank \d+ is")
        case "slow-link":
            return Truth(f"the link of rank {one}", rf"{EXPOSED}|link|network|slower", never=r"late per step")
        case "no-overlap":
            return Truth("communication without overlap", EXPOSED)
        case "small-buckets":
            words = (r"small|buckets?|kB|KiB|MB|MiB|collectives per step|calls",)
            return Truth("many small collectives", f"{EXPOSED}|small|bucket|collective", words)
        case "data-starvation":
            kind = f"{LATE}|{LOADING}" if ranks else LOADING
            return Truth("the data loader", kind, (*blamed, LOADING), rank=one)
        case "host-sync":
            return Truth("readings in every layer", SYNC)
        case "garbage-collection":
            return Truth("Python's garbage collector", COLLECTION)
        case "allocator-retries":
            return Truth("device memory allocation", ALLOCATOR)
        case "checkpoint-pauses":
            kind = f"{LATE}|{CHECKPOINT}" if ranks else CHECKPOINT
            return Truth("the checkpoint", kind, (*blamed, CHECKPOINT), rank=one)
        case _:
            pardoned = inherent(given.strategy)
            return Truth(given.fault, quiet=True, pardoned=f"(?m){pardoned}" if pardoned else "")
