"""g2: saved activations in host memory, and what a link must carry for that."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed

# llama-7b, s = 4,096, one sequence, PCIe Gen5 at 55 GB/s: a layer saves 0.573 GB and computes 4.0 ms forward.
SAVED, LINK, FORWARD_MS = 0.573e9, 55e9, 4.0


def hidden(saved: float, link: float, forward_ms: float) -> float:
    """The share of the copies out that a layer's forward covers."""
    return min(1.0, forward_ms / (1e3 * saved / link))


def _check(stays: Observed, moves: Observed) -> list[Check]:
    report = moves.truth["remedy"]
    out, back = report["out"], report["into"]
    a, b = stays.truth["losses"], moves.truth["losses"]
    left = out["bytes"] - back["bytes"]
    whole = out["bytes"] / max(1, report["microbatches"])
    return [
        Check("losses are equal to the bit", f"{len(a)} of {len(b)}" if a == b else "they differ", a == b),
        Check(
            "every saved tensor that came back is the one that left",
            str(report["verified"]),
            bool(report["verified"]),
        ),
        Check(
            "what moves out comes back, but for the end of a forward, which is still there",
            f"{out['bytes'] / 1e6:.1f} MB out, {back['bytes'] / 1e6:.1f} MB in",
            0 <= left < 0.1 * out["bytes"],
        ),
        Check(
            "what stays is parameters alone",
            ", ".join(f"{reason}: {size / 1e6:.1f} MB" for reason, size in report["kept_bytes"].items()),
            set(report["kept_bytes"]) == {"parameter or buffer"},
        ),
        Check(
            "no host memory is taken after the second microbatch",
            f"{report['host_allocations_after_warm_up']} times",
            report["host_allocations_after_warm_up"] == 0,
        ),
        Check(
            "on a processor threads stand in for a GPU's copies, and no memory is gained: time is not graded",
            f"{whole / 1e6:.1f} MB a microbatch; {stays.step_ms:.0f} ms and {moves.step_ms:.0f} ms a step",
            passed=True,
        ),
    ]


EXERCISE = Exercise(
    name="g2",
    title="Activation offload",
    question="Memory is full of saved activations: what does it cost to keep them on the host?",
    see="copies out in the forward pass and back in the backward pass, and what compute waits for",
    expected=(
        "training does not change by a bit",
        (
            "a copy hides behind compute that takes longer: of a 7B model's layer "
            f"{hidden(SAVED, LINK, FORWARD_MS):.0%} over PCIe 5, all over NVLink-C2C (formula)"
        ),
    ),
    fix="with lostflops.optimize.offload(model, budget=...): … around the training loop",
    steps=14,
    words=("--seq", "128"),
    sides=(
        ExerciseSide("activations stay"),
        ExerciseSide("all that can move does, whatever it costs", ("--offload",)),
    ),
    check=_check,
)
