"""Findings that only the joining of others makes, and which remedies every finding asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Verdict
from lostflops.recipes import declared


@dataclass(frozen=True)
class Made:
    """A finding of no recipe; `claim` is an example of how it reads."""

    name: str
    claim: str
    remedies: tuple[str, ...]
    verdict: Verdict
    none_known: str = ""
    also: tuple[str, ...] = ()  # the page names these and leaves the finding's own advice in its place


@dataclass(frozen=True)
class Recommended:
    """Which remedies a finding or a case asks for, the best first; or why none is known.

    Those in `also` the page names, and leaves the finding's own advice in its place. `of` is the finding that
    a case is of.
    """

    remedies: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    none_known: str = ""
    of: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.remedies, *self.also)


LOGGING = Made(
    "logging-inside-step",
    "The GPU idles 3.00 ms per step (30.0 %) while the CPU logs.",
    ("log-less",),
    Verdict("Held up by logging", "idle time while the CPU logs"),
)
SLOWED = Made(
    "saving-slows-launches",
    "The GPU idles 9.00 ms per step (18 %) as the CPU is slow while another thread saves a checkpoint.",
    ("async-checkpoint",),
    Verdict("Slowed by a checkpoint in the background", "idle time while another thread saves"),
)
BESIDE = Made(
    "python-beside-launches",
    "The GPU idles 9.00 ms per step (18 %) while another thread runs Python: `tally` (train.py:3).",
    (),
    Verdict("Held up by another thread", "idle time while another thread runs Python"),
    none_known="What that thread does is the job's own: move it, as the page says.",
)
ONE_BY_ONE = Made(
    "optimizer-launch-bound",
    "The GPU idles 9.80 ms per step (33 %) because the CPU launches the 1,200 kernels of `AdamW` too slowly.",
    ("fused-optimizer",),
    Verdict("Launch-bound in the optimizer", "idle time while the CPU launches the optimizer's kernels"),
)
EVALUATES = Made(
    "evaluation-inside-step",
    "The Trainer evaluates in each step, which takes 9.20 ms per step (45 %).",
    (),
    Verdict("Held up by evaluations", "evaluations inside steps"),
    none_known="How often to evaluate is the job's to choose; the finding names the arguments.",
)
MADE_ON_CPU = Made(
    "tensors-made-on-cpu",
    "The GPU idles 1.92 ms per step (23 %) while the CPU makes tensors in `make_mask` and copies them to it.",
    (),
    Verdict("Held up by tensors made on the CPU", "idle time while the CPU makes tensors for the GPU"),
    none_known="Which tensors these are is the job's own code; the finding names the function.",
)
COMPUTED_ON_CPU = Made(
    "operators-on-cpu",
    "The GPU idles 6.01 ms per step (24 %) while the CPU computes on tensors of its own in `metrics`.",
    (),
    Verdict("Held up by computing on the CPU", "idle time while the CPU computes on tensors of its own"),
    none_known="What is computed there is the job's own code; the finding names the function.",
)
LOSS = Made(
    "loss-over-vocabulary",
    "The loss over 128,000 words takes 9.20 ms per step (22 %) of GPU time, in fp32.",
    ("fused-loss",),
    Verdict("A costly loss", "the loss over the vocabulary"),
)
CASTS = Made(
    "autocast-casts-weights",
    "Autocast casts the same fp32 weights in each step, for 1.92 ms per step (12 %) of GPU time.",
    (),
    Verdict("Held up by casts of weights", "casts of weights"),
    none_known="In which type parameters are kept is the job's own to choose; the finding says how.",
)
AGAIN = Made(
    "activations-computed-again",
    "Activations are computed again in the backward pass, for 20.3 ms per step (24.4 %).",
    (),
    Verdict("Slowed by recomputation", "activations that are computed again in the backward pass"),
    also=("selective-checkpointing",),
)
FP32_ON_CPU = Made(
    "fp32-on-cpu",
    "Matrix products in fp32 are 84.0 % of a step, and this CPU multiplies bf16.",
    (),
    Verdict("Bound by fp32 on the CPU", "matrix products in fp32"),
    also=("bf16-on-cpu",),
)
FP64_ON_CPU = Made(
    "fp64-on-cpu",
    "Matrix products in fp64 are 84.0 % of a step.",
    (),
    Verdict("Bound by fp64 on the CPU", "matrix products in fp64"),
    also=("no-float64",),
)
OUTSIDE_PASSES = Made(
    "operators-outside-passes",
    "Operators outside of passes that train and of the optimizer take 25.7 ms per step (46.0 %): "
    "`aten::upsample_bicubic2d` (11.1 ms).",
    (),
    Verdict("Held up by operators outside of passes", "operators outside of passes that train"),
    none_known="What these operators are for is the job's own; the finding names them, and their function.",
)
BESIDE_TRAINING = Made(
    "operators-without-gradients",
    "Operators without gradients, other than the optimizer's, take 16.5 ms per step (39.4 %): `aten::addmm` "
    "(15.9 ms).",
    (),
    Verdict("Held up by operators without gradients", "operators without gradients"),
    none_known="What these operators are for is the job's own; the finding names them, and their function.",
)
COLLECTED = Made(
    "garbage-outside-window",
    "Collections of garbage that the recorded steps lack take 4.00 ms per step: 21.0 % of step time outside "
    "of them, 1.0 % in them.",
    ("gc-freeze",),
    Verdict(
        "Held up by collections outside the recorded steps",
        "collections of garbage that the recorded steps lack",
        outside=True,
    ),
)
OWN_FUNCTION = Made(
    "own-autograd-function",
    "`Slow`, an autograd function of the job's own, is 33.7 % of a step beside operators.",
    (),
    Verdict("Held up by an autograd function of the job's own", "an autograd function of the job's own"),
    none_known="What the function does is the job's own code; the finding names it.",
)
PROFILER = Made(
    "profiler-at-work",
    "The GPU idles 2.02 ms per step (14.2 %) while the profiler itself works: `Buffer Flush`.",
    (),
    Verdict("Slowed down by the profiler", "idle time in which the profiler itself works"),
    none_known="The job does not have this time when it is not recorded.",
)
PACE = Made(
    "kernels-slow-down",
    "The same kernels take 1.5 times as long in steps 5 to 7 as in the others, which costs 8.63 ms per step "
    "(19.7 %).",
    (),
    Verdict("Slowed down on the GPU", "what kernels take longer in some steps than in the others"),
    none_known="What holds the GPU down decides: its clocks, heat and power, or what else runs on it.",
)
MADE: Mapping[str, Made] = {
    made.name: made
    for made in (
        LOGGING,
        SLOWED,
        BESIDE,
        ONE_BY_ONE,
        EVALUATES,
        MADE_ON_CPU,
        COMPUTED_ON_CPU,
        LOSS,
        CASTS,
        AGAIN,
        FP32_ON_CPU,
        FP64_ON_CPU,
        OUTSIDE_PASSES,
        BESIDE_TRAINING,
        COLLECTED,
        OWN_FUNCTION,
        PROFILER,
        PACE,
    )
}
# What findings become when it is known what lies behind them: a case, with remedies of its own.
CASES: Mapping[str, Recommended] = {
    "many-micro-batches": Recommended(
        ("larger-micro-batches", "compile"), ("cuda-graphs", "attention-kernel"), of="launch-bound"
    ),
    "uneven-work": Recommended(("length-grouping",), ("packing",), of="rank-arrives-last"),
    "uneven-stages": Recommended(("stage-balance",), of="pipeline-bubble"),
    # Stages whose schedule is the better one already.
    "interleaved-stages": Recommended(("pipeline-microbatches",), ("stage-balance",), of="pipeline-bubble"),
    "zero-bubble-stages": Recommended(("pipeline-microbatches",), ("stage-balance",), of="pipeline-bubble"),
    # All gradients in one operation.
    "communication-exposed-at-once": Recommended(also=("overlap-communication",), of="communication-exposed"),
    "slow-device": Recommended(also=("rank-exclusion",), of="rank-arrives-last"),
    **{
        f"communication-exposed-{purpose}": Recommended(remedies, also, of="communication-exposed")
        for purpose, remedies, also in (
            (
                "gradients",
                ("gradient-accumulation", "overlap-communication"),
                ("bucket-size", "bf16-gradients"),
            ),
            (
                "shards",
                ("fsdp-prefetch", "fsdp-reshard", "overlap-communication", "gradient-accumulation"),
                ("hierarchical-partitioning", "zero-stage"),
            ),
            # Of shards, where it is gradients that wait, or prefetching gains nothing: the links are busy.
            (
                "reduced",
                ("gradient-accumulation",),
                ("hierarchical-partitioning", "bf16-gradients"),
            ),
            (
                "gathered",
                ("fsdp-reshard", "gradient-accumulation"),
                ("hierarchical-partitioning", "zero-stage"),
            ),
            ("tensor", ("tensor-overlap", "tensor-inside-node"), ()),
            ("experts", ("expert-overlap",), ()),
            ("exchange", ("earlier-exchange",), ()),
            ("stages", ("pipeline-microbatches", "pipeline-schedule"), ()),
            ("ring", ("earlier-exchange",), ()),
            ("context", ("earlier-exchange",), ()),
            ("barriers", ("fewer-barriers",), ()),
            ("broadcasts", ("fewer-broadcasts",), ()),
            ("updated", ("weights-in-buckets",), ()),
            ("values", ("fewer-values",), ()),
            ("replicas", ("one-process-per-gpu",), ()),
        )
    },
}


def verdicts() -> Mapping[str, Verdict]:
    """What the page's first sentence says of findings that no account is named after."""
    of_recipes = {name: finding.verdict for name, (_, finding) in declared().items()}
    losses = {account: account.loss for account in ACCOUNTS.values()}
    return {
        **{name: verdict for name, verdict in of_recipes.items() if verdict},
        **{name: made.verdict for name, made in MADE.items()},
        **{
            loss.finding: Verdict(account.verdict, loss.takes)
            for account, loss in losses.items()
            if loss and loss.takes
        },
    }


# Said by a finding whose advice none of the edits makes, in the place of the edit of its kind.
NO_EDIT = "none"
# Edits that take something from the device: on a CPU there is nothing to take.
OF_DEVICES = ("cuda-graph", "no-sync", "overlap", "pinned")


def edits() -> Mapping[str, str]:
    """What to ask `lostflops whatif` about each finding for which there is an edit."""
    losses = [account.loss for account in ACCOUNTS.values() if account.loss]
    return {
        **{name: finding.edit for name, (_, finding) in declared().items() if finding.edit},
        **{loss.finding: loss.edit for loss in losses if loss.edit},
    }


def remedies() -> Mapping[str, Recommended]:
    """Which remedies each finding or case asks for."""
    return {
        **{name: Recommended(f.remedies, f.also, f.none_known) for name, (_, f) in declared().items()},
        **{name: Recommended(made.remedies, made.also, made.none_known) for name, made in MADE.items()},
        **CASES,
    }


def asking_for(remedy: str) -> tuple[str, ...]:
    """The findings that recommend a remedy, in some case of theirs or in all."""
    asked = remedies().items()
    return tuple(dict.fromkeys(known.of or name for name, known in asked if remedy in known.all))


def shortened_by(remedy: str) -> tuple[str, ...]:
    """The accounts of the ledger that a remedy makes shorter where they are no loss, as compute is none."""
    return tuple(name for name, account in ACCOUNTS.items() if remedy in account.remedies)
