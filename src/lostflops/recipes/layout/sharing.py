"""How replicas share gradients, weights and optimizer states, as volumes in units of the parameters show."""

from __future__ import annotations

from .seen import ALIKE, AROUND, Dimension, Traffic

FROZEN = 1.5  # times the gradients: of more weights than these, some have no gradient
MOST_OF = 0.5  # of the parameters: less that is gathered after the optimizer is something else


def sharded(around: Traffic, size: int | None, members: str, basis: str, marked: bool | None) -> Dimension:
    """Gradients are reduced and scattered, weights gathered: P is what one round of gradients holds."""
    scattered = around.of("reduce-scatter", "backward")
    forward, again, late = (
        around.of("all-gather", *phases) for phases in (("forward",), ("backward",), AROUND)
    )
    rounds, passes = scattered.rounds, _microbatches(around)
    gradient, weight = scattered.element, around.of("all-gather").element
    parameters = scattered.volume / rounds / gradient if gradient and rounds else None
    whole = None if parameters is None or weight is None else parameters * weight  # bytes of all weights
    frozen = whole is not None and forward.volume > FROZEN * passes * whole
    if frozen:  # gradients are those of the adapters alone: the forward pass tells how many weights there are
        whole, parameters = forward.volume / passes, round(forward.volume / passes / (weight or 1))
    seen, calls = (
        around.of("all-gather").volume + scattered.volume,
        around.of("all-gather").calls + scattered.calls,
    )
    if again.rows:
        near = len({r["group_size"] for r in again.rows} | {r["group_size"] for r in scattered.rows}) > 1
        strategy = "FSDP2" if marked else "ZeRO-3" if marked is False else "FSDP2 or ZeRO-3"
        strategy = "ZeRO-3 with hpZ" if near else strategy
        # The unit that is whole after the forward pass is not gathered again.
        gathers = around.of("all-gather")
        kept = 2 * whole - gathers.volume / passes if whole else 0
        kept = kept if any(abs(kept - unit) <= ALIKE * unit for unit in gathers.sizes) else 0
        expected = None if whole is None else passes * (2 * whole - kept) + scattered.volume
        told = "weights gathered for both passes, gradients reduced and scattered"
    else:
        gathered = forward.volume + late.volume
        once = whole is not None and passes > 1 and gathered < 1.5 * whole
        strategy = (
            "distributed optimizer"
            if once
            else "FSDP2 without resharding"
            if marked or passes > 1
            else "FSDP2 without resharding, or a distributed optimizer"
        )
        expected = None if whole is None else (1 if once else passes) * whole + scattered.volume
        told = "weights gathered for the forward pass alone, gradients reduced and scattered"
    known = whole is not None and abs(forward.volume + late.volume - passes * whole) <= ALIKE * passes * whole
    sure = "; gathers and reduce-scatters agree on the parameters" if known and not frozen else ""
    if frozen and gradient:
        trained = round(scattered.volume / (rounds or 1) / gradient)
        sure = f"; {trained:,} parameters have gradients, the others are frozen"
    return Dimension(
        "data", strategy, size, members, None if parameters is None else round(parameters), rounds,
        expected, seen, calls, f"{basis}{told}{sure}",
    )  # fmt: skip


def gradients_averaged(around: Traffic, size: int | None, members: str, basis: str) -> Dimension:
    """Every replica has all gradients: P is what one round of all-reduces holds."""
    averaged = around.of("all-reduce", "backward")
    gathered, told = around.of("all-gather", *AROUND), around.of("broadcast", *AROUND)
    rounds, passes = averaged.rounds, _microbatches(around)
    other = rounds if rounds > 1 and _not_again(averaged) > ALIKE * averaged.volume else 0
    rounds = 1 if other else rounds
    element = averaged.element
    whole = averaged.volume / rounds if rounds else 0
    parameters = round(whole / element) if element and whole else None
    seen, calls = averaged.volume, averaged.calls
    strategy, expected = "DDP", whole * rounds or None
    said = "gradients all-reduced in the backward pass"
    if whole and gathered.volume >= MOST_OF * whole:
        strategy = "ZeRO-2" if rounds > 1 else "ZeRO-1" if passes > 1 else "ZeRO-1 or ZeRO-2"
        weights = (gathered.element or 0) * (parameters or 0)
        expected = whole * rounds + weights if weights else None
        seen, calls = seen + gathered.volume, calls + gathered.calls
        said += ", weights gathered after the optimizer"
    elif whole and told.volume >= MOST_OF * whole:
        strategy, expected = "ZeroRedundancyOptimizer", whole * rounds + whole
        seen, calls = seen + told.volume, calls + told.calls
        said += ", weights broadcast after the optimizer"
    if other:
        said += f", those of other parameters in each of {other:g} passes"
    if rounds > 1 and strategy == "DDP":
        said += f", for each of {rounds:g} microbatches"
    return Dimension("data", strategy, size, members, parameters, rounds, expected, seen, calls, basis + said)


def _not_again(averaged: Traffic) -> float:
    """Volume of what does not come in each backward pass: two models that train in turns have a pass each."""
    return Traffic(r for r in averaged.rows if r["calls"] % r["rounds"]).volume


def _microbatches(around: Traffic) -> float:
    """Backward passes per step; 1 where operators do not tell."""
    return max((r["microbatches"] / r["steps"] for r in around.rows if r["microbatches"]), default=1) or 1
