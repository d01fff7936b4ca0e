"""What a proof says, sentence by sentence. Every page takes them from here.

Less time and faster are two numbers: percent is of time everywhere, and the speedup is told once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from lostflops.errors import shown
from lostflops.experiment.proof.paired import none_larger
from lostflops.experiment.proof.parity import NOT_HIDDEN_BYTES, LossParity, MemoryParity
from lostflops.experiment.proof.proven import Proven
from lostflops.units import milliseconds

MOSTLY = 0.5
QUIET = 0.05  # starts of one command that differ by more are worth a quieter machine
KIND = {"mean": "mean", "median": "median", "p10": "10th percentile"}


def headline(found: Proven) -> str:
    """The verdict in a sentence."""
    if found.estimate is None or not found.finished:
        return "Nothing is known: no pair of starts was finished."
    if found.low is None or found.high is None:
        return f"Cannot tell: {_count(found.finished, 'pair')} finished, too few for an interval."
    between = f"between {_change(found.low)} and {_change(found.high)}"
    if found.verdict in ("faster", "slower"):
        return (
            f"{found.verdict.capitalize()}: {_change(found.ratio or 1)} per {_unit(found)} ({_ends(found)})."
        )
    if found.verdict == "no difference":
        return (
            f"No difference shown: {between} ({found.interval}); none is larger than "
            f"{percent(none_larger(found.estimate))}."
        )
    return f"No difference shown, and cannot tell: {between} per {_unit(found)} ({found.interval})."


def step(found: Proven) -> str:
    """The step on both sides, and the speedup."""
    if found.step_ns is None or found.ratio is None:
        return ""
    before, after = map(milliseconds, found.step_ns)
    text = f"{_unit(found)} {before} -> {after}"
    if found.low is None or found.high is None:
        return text
    faster = f"{1 / found.ratio:.3f} times as fast ({1 / found.high:.3f} to {1 / found.low:.3f})"
    return f"{text}   {faster}" if found.verdict in ("faster", "slower") else text


def basis(found: Proven) -> str:
    """Of how many starts and steps."""
    if found.values is None:
        return ""
    values = found.values
    what = "" if values.measure == "mean" else f", by the {KIND[values.measure]} step"
    return f"{values.steps} steps of each start after {values.dropped} of warm-up{what}" + (
        "" if not any(n for _, n in values.saving) else f"; {_saving(found)}"
    )


def resolution(found: Proven) -> Iterator[str]:
    """What such an experiment could have seen, and what would see more."""
    if found.verdict in ("faster", "slower") or found.resolution is None:
        return
    yield (
        f"A difference of {percent(math.expm1(found.resolution))} would have been seen in 4 of 5 such "
        "experiments."
    )
    more = found.more_pairs
    noise = found.estimate.spread / math.sqrt(2) if found.estimate else 0.0
    if more is None:
        return
    see = percent(math.expm1(more.difference))
    if more.pairs is None:
        yield (
            f"More than 100 pairs for {see}: starts of the same command differ by {percent(noise)} here. "
            "Use a quieter machine, or pin the job to cores that nothing else uses."
        )
        return
    most = "more than 100" if more.high is None else str(more.high)
    yield f"About {more.pairs} more pairs for {see} ({more.low} to {most}; `--more {more.pairs}`)."
    if noise > QUIET:
        yield f"Starts of the same command differ by {percent(noise)} on this machine."
    share = found.share_of_steps
    if share is not None and share >= MOSTLY and found.values is not None:
        yield (
            "That is mostly the scatter of the steps within a start: starts of more than "
            f"{found.values.steps} steps need fewer pairs."
        )


def by_steps(found: Proven) -> str:
    """What the steps of one start of each side would say alone."""
    if found.by_steps is None or found.estimate is None:
        return ""
    middle = found.estimate.difference
    ends = (math.exp(middle - found.by_steps), math.exp(middle + found.by_steps))
    return f"By the steps alone: between {_change(ends[0])} and {_change(ends[1])}."


def loss(found: LossParity) -> str:
    """How the losses compare."""
    worst = percent(abs(found.worst))
    which = "higher" if found.worst > 0 else "lower"
    over = f"over {found.steps} steps"
    match found.parity:
        case "bit-identical":
            return f"Loss bit-identical {over}."
        case "rounding":
            return f"Loss equal up to rounding {over}: {worst} apart in the worst window."
        case "close":
            return f"Loss close {over}: {worst} {which} after the change in the worst window."
        case "apart":
            return f"LOSS APART from step {found.first} on: {worst} {which} in the worst window."
        case "diverged":
            return f"LOSS DIVERGED: not finite after the change from step {found.first} on."
        case "not finite":
            return f"LOSS NOT FINITE before the change already, from step {found.first} on."
        case "not comparable":
            if not found.steps:
                return "Loss not comparable: the two sides tell it of unlike steps."
            if found.noise is None:
                return "Loss not comparable: the two sides tell it on unlike ranks."
            return (
                f"Loss not comparable: starts of the same command differ by {percent(found.noise)} in their "
                "worst window. Set the seed and the order of the data."
            )
        case "untold":
            return "NO LOSS after the change, while there was one before: whether it still trains is unknown."
        case "unknown":
            return "Loss not compared: call `lostflops.log(loss=...)` once per step, and a proof compares it."


def memory(found: MemoryParity) -> str:
    """How one peak compares."""
    name = found.kind.called.capitalize().replace("gpu", "GPU")
    before, after = map(_bytes, (found.before, found.after))
    if found.equal:
        exactly = "" if found.kind.equal == 0 else f" within {percent(found.kind.equal)}"
        return f"{name} equal{exactly}: {after}."
    how = "less" if found.after < found.before else "MORE" if found.is_more else "more"
    spread = (
        "" if found.low == found.high else f", from {_signed(found.low)} to {_signed(found.high)} by pair"
    )
    amount = abs(found.after - found.before)
    change = f"{amount:,} bytes" if amount < NOT_HIDDEN_BYTES >> 10 else _bytes(amount)
    return f"{name} {change} {how}: {before} -> {after}{spread}."


def prediction(found: Proven) -> str:
    """The measured gain beside the predicted one."""
    said = found.prediction
    if said is None:
        return ""
    before = found.step_before
    most = said.most(before)
    share = percent(said.gain) if most == said.gain else f"{100 * said.gain:.1f} to {percent(most)}"
    text = f"Predicted {share} less time" + (f" (`{shown(said.edit)}`)" if said.edit else "")
    if found.estimate is None or found.low is None:
        return f"{text}: not measured."
    longer = ""
    if before is not None and most > said.gain:
        longer = f" Recorded steps took {milliseconds(said.step - before)} longer than these."
    if said.is_inside(found.estimate):
        return f"{text}: inside the interval.{longer}"
    if said.is_inside(found.estimate, before):
        return f"{text}, which reaches into the interval.{longer}"
    realised, text = said.realised(found.estimate), f"{text}: outside the interval."
    if realised is None:
        return f"{text}{longer}"
    middle, low, high = realised
    return f"{text} Measured over predicted: {middle:.2f} ({low:.2f} to {high:.2f}).{longer}"


def differences(found: Proven) -> Iterator[str]:
    for setting in found.differences:
        yield f"{setting.what}: {shown(setting.before)} -> {shown(setting.after)}"


def percent(share: float) -> str:
    """A share of time with as many digits as it is worth."""
    return f"{100 * share:.1f} %" if abs(share) >= 0.001 or not share else f"{100 * share:.2g} %"


def _change(ratio: float) -> str:
    return f"{percent(abs(ratio - 1))} {'less' if ratio < 1 else 'more'} time"


def _ends(found: Proven) -> str:
    assert found.low is not None and found.high is not None
    if (found.low < 1) == (found.high < 1):
        ends = sorted((abs(1 - found.low), abs(1 - found.high)))
        return f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}; {found.interval}"
    return f"{_change(found.low)} to {_change(found.high)}; {found.interval}"


def _unit(found: Proven) -> str:
    return found.values.per if found.values else "step"


def _saving(found: Proven) -> str:
    assert found.values is not None
    sides = [
        f"{side} {milliseconds(ns)} in {_count(times, 'save')}"
        for side, (ns, times) in zip(("before", "after"), found.values.saving, strict=True)
    ]
    counts = "counts, because most steps save one" if found.values.saving_counts else "does not count"
    return f"time in checkpoints {counts} ({', '.join(sides)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _bytes(amount: int) -> str:
    return f"{amount / (1 << 30):.2f} GiB" if amount >= 1 << 30 else f"{amount / (1 << 20):.0f} MiB"


def _signed(amount: int) -> str:
    return f"{'-' if amount < 0 else '+'}{abs(amount) / (1 << 20):.1f} MiB"
