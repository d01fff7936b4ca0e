"""dialogue: turns of a dialogue, with keys and values computed again or kept in host memory."""

from __future__ import annotations

from statistics import median
from typing import Any

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted

USERS, TURNS, PROMPT, SAID, ANSWER = 3, 4, 256, 16, 8
ALONE = sum(PROMPT + SAID + turn * (SAID + ANSWER) + ANSWER - 1 for turn in range(TURNS)) * USERS
# Kept: the first user computes the prompt, each turn its question, the last token of the answer before, whose
# keys and values no forward pass has made, and its answer but for the last token.
KEPT = PROMPT + USERS * (TURNS * (SAID + ANSWER - 1) + TURNS - 1)


def _computed(seen: Observed) -> int:
    turns: list[dict[str, Any]] = seen.truth["turns"]
    return sum(turn["computed"] for turn in turns)


def _last_turn_ms(seen: Observed) -> float:
    return median(turn["ms"] for turn in seen.truth["turns"] if turn["turn"] == TURNS - 1)


def _check(again: Observed, kept: Observed) -> list[Check]:
    same = again.truth["dialogues"] == kept.truth["dialogues"]
    report = kept.truth["cache"]
    return [
        Check(
            "answers are the same", "every token" if same else "they differ", same,
        ),
        counted("tokens computed where each turn begins anew", ALONE, _computed(again)),
        counted("tokens computed where a turn resumes its dialogue", KEPT, _computed(kept)),
        Check(
            "users share the prompt: it is stored once",
            f"{report['shared_bytes'] / report['bytes_per_token']:,.0f} tokens were there already",
            report["shared_bytes"] == (USERS - 1) * PROMPT * report["bytes_per_token"],
        ),
        Check(
            "nothing was evicted, and host memory was taken once",
            f"{report['evicted_bytes']:,} bytes, {report['host_allocations']} times",
            report["evicted_bytes"] == 0 and report["host_allocations"] == 1,
        ),
        Check(
            "a turn takes less time; how much less depends on the machine and is not graded",
            f"{_last_turn_ms(again):.0f} ms and {_last_turn_ms(kept):.0f} ms for the last turn",
            passed=True,
        ),
    ]  # fmt: skip


EXERCISE = Exercise(
    name="dialogue",
    title="A dialogue with and without a persistent KV cache",
    question="Three users talk to one model in turn: how much of each turn is computed again?",
    see="tokens that go through the model per turn: the whole dialogue, or the new question alone",
    expected=(
        f"{ALONE:,} tokens are computed where each turn begins anew, {KEPT:,} where it resumes",
        "a resumed turn reads keys and values over the link in the place of computing them",
    ),
    fix="cache = lostflops.optimize.DialogueCache(host=...); cache.generate(model, ids, user)",
    script="workloads.dialogue",
    sides=(
        ExerciseSide("each turn computes the whole dialogue"),
        ExerciseSide("keys and values stay in host memory between turns", ("--keep",)),
    ),
    check=_check,
    recorded=False,
    needs=("transformers",),
)
