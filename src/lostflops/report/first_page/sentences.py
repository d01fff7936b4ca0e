"""What the step log tells of the job as a whole: how it ended, and how its steps went, in sentences."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import polars as pl

from lostflops.finding import milliseconds, percent
from lostflops.recipes.steps.log_pauses import WORTH_SAYING, costs
from lostflops.recipes.steps.log_summary import OFTEN, UNLIKE
from lostflops.recipes.steps.pauses import CAUSES
from lostflops.session import Answer
from lostflops.store.trace import WINDOW_LOST, Quality, Trace

from .run import Run

MOST_RANKS = 8
KILLED_WITH = -signal.SIGTERM  # what a launcher ends the ranks with that have not failed themselves
BY_OTHERS = (KILLED_WITH, -signal.SIGINT)
SHARES = (
    ("data_share", "waiting for data"),
    ("checkpoint_share", "saving checkpoints"),
    ("garbage_share", "collecting garbage"),
)
TIMES = 3  # times as long: from there on, a percentage is no picture
WORTH_SHOWING = 0.005
OWN_PROFILER = "own profiler"
DEFAULT_LAST = 14  # step that `record` needs when it is not told which


def ending(ends: pl.DataFrame) -> Iterator[str]:
    """How the job failed, from the table `rank_ends`; nothing where it did not, or runs still."""
    if ends.is_empty():
        return
    status = ends["job_status"].max()
    dead = _died(ends)
    if not isinstance(status, int) or (status == 0 and dead.is_empty()):
        return
    if _was_interrupted(status, ends):
        last = ends["last_step"].max()
        where = f" in step {last + 1}" if isinstance(last, int) else ""
        yield f"The job was interrupted (Ctrl-C){where}."
        return
    if dead.is_empty():
        last = ends["last_step"].max()
        after = f" after step {last}" if last is not None else ""
        yield f"The job failed: it {_ended(status)}{after}; no rank's log says why."
        return
    first = dead.row(0, named=True)
    alone = ends.height == 1
    who = "The job" if alone else _ranks(dead["rank"].to_list())
    step = 0 if first["last_step"] is None else first["last_step"] + 1
    yield f"The job failed: {'it' if alone else who} {_how(first, dead.height > 1)} in step {step}."
    rest = ends.filter(~pl.col("rank").is_in(dead["rank"].implode()))
    furthest = rest["last_step"].max()
    if isinstance(furthest, int) and furthest <= step:
        others = _ranks(sorted(rest["rank"].to_list()), lower=False)
        yield (
            f"{others} finished no step after step {furthest}. Steps cut short by the end are left out of "
            "means."
        )


def _was_interrupted(status: int, ends: pl.DataFrame) -> bool:
    """Whether somebody stopped the job from its terminal: it was told so, and no rank failed otherwise."""
    by_hand = (-signal.SIGINT, 128 + signal.SIGINT)
    fine = pl.col("status").is_null() | pl.col("status").is_in([0, *by_hand, KILLED_WITH])
    raised = pl.col("exception").fill_null("KeyboardInterrupt") != "KeyboardInterrupt"
    return status in by_hand and bool(ends.select(fine.all() & ~raised.any()).item())


def _died(ends: pl.DataFrame) -> pl.DataFrame:
    """The ranks that failed first: those that a signal ended, else the first to raise or to leave no word.

    A rank that a launcher ended because another failed, that somebody stopped by hand, or that lost its peer,
    did not fail first.
    """
    status = pl.col("status")
    rules = (
        (status < 0) & ~status.is_in(BY_OTHERS),
        ~pl.col("finished") & ~status.is_in(BY_OTHERS).fill_null(False),
        (status > 0) | pl.col("exception").is_not_null(),
        status < 0,
    )
    if not ends["job_status"].max():
        return ends.clear()  # it went well, or runs still: a log without an end tells nothing
    for rule in rules:
        found = ends.filter(rule.fill_null(False))
        # Where all look alike, who fell behind tells; where none did, all are named.
        if found.height:
            earliest = found["last_step"].fill_null(-1).min()
            return found.filter(pl.col("last_step").fill_null(-1) == earliest).sort("rank")
    return ends.clear()


def _how(rank: Mapping[str, object], several: bool) -> str:
    status, exception = rank["status"], rank["exception"]
    was = "were" if several else "was"
    if isinstance(status, int) and status < 0:
        return f"{was} ended by {_signal(-status)}"
    if isinstance(exception, str):
        told = f" (exit status {status})" if isinstance(status, int) and status != 1 else ""
        return f"raised {exception}{told}"
    if isinstance(status, int) and status > 128 and not rank["finished"]:
        return f"{was} ended by {_signal(status - 128)}"
    if isinstance(status, int) and status:
        return f"ended with exit status {status}"
    return f"{was} killed"


def _ended(status: int) -> str:
    return f"was ended by {_signal(-status)}" if status < 0 else f"ended with exit status {status}"


def _signal(number: int) -> str:
    with suppress(ValueError):
        name = signal.Signals(number).name
        return f"{name} (often sent when memory ran out)" if number == signal.SIGKILL else name
    return f"signal {number}"


def _ranks(ranks: Sequence[int], lower: bool = True) -> str:
    named = [str(rank) for rank in ranks[:MOST_RANKS]]
    more = f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    word = f"{'r' if lower else 'R'}ank{'s' * (len(ranks) > 1)}"
    if len(named) > 1 and not more:
        return f"{word} {', '.join(named[:-1])} and {named[-1]}"
    return f"{word} {', '.join(named)}{more}"


def steps(answers: Mapping[str, Answer], log_alone: bool = False) -> Iterator[str]:
    """How the job's steps went, and how those that were recorded in full compare; none were where the log is
    all that is there."""
    if "step_log_summary" not in answers:
        return
    log = answers["step_log_summary"].table
    told = log.filter(pl.col("median").is_not_null())
    if told.is_empty():
        made = f"{log['steps'].max():,} step{'s' * (log['steps'].max() != 1)}"
        most = f"at most {made} a rank" if log.height > 1 else made
        yield f"The step log has {most}: too few outside warm-up and recording to give a step time."
        return
    usual = told["median"].median()
    assert isinstance(usual, float)
    rank = "median rank" if told.height > 1 else f"rank {told['rank'][0]}"
    text = (
        f"The step log has {log['steps'].max():,} steps; the median outside warm-up and recording is "
        f"{milliseconds(usual)} ({rank})"
    )
    if not log_alone:
        text += _compared(told.filter(pl.col("recorded_median").is_not_null()), usual)
    yield f"{text}."
    parts = [
        f"{percent(worst, 1)} {words}"
        for share, words in SHARES
        if isinstance(worst := told[share].max(), float) and worst >= WORTH_SHOWING
    ]
    if parts:
        yield (
            "Step time outside warm-up and recording: "
            f"{', '.join(parts)}{' (worst rank)' if told.height > 1 else ''}."
        )
    yield from _pauses(answers)


def _compared(ranks: pl.DataFrame, usual: float) -> str:
    """How recorded steps compare with the others, as the end of a sentence."""
    kept, alike, before, after = (
        ranks[name].median() for name in ("recorded_median", "alike", "before", "after")
    )
    if not isinstance(kept, float) or not isinstance(alike, float):
        return ""
    recorded = f"that of recorded steps {milliseconds(kept)}"
    changed = 2 * ranks["before"].null_count() < ranks.height
    if changed and isinstance(before, float) and isinstance(after, float):
        told = f": {milliseconds(before)} before the recording and {milliseconds(after)} after it, {recorded}"
        care = ". Its steps changed meanwhile: read shares with care"
        return told + care * (abs(kept / after - 1) > UNLIKE)
    if abs(kept / usual - 1) <= UNLIKE:
        return f", {recorded}"
    if alike >= OFTEN:
        return f", {recorded}: {percent(alike, 1)} of the others are as {'long' if kept > usual else 'short'}"
    return f". Recorded steps {unlike(kept, usual)} ({milliseconds(kept)}): read shares with care"


def unlike(kept: float, usual: float) -> str:
    """How recorded steps compare with the others: a percentage as long as that can be pictured."""
    if kept >= TIMES * usual:
        return f"took {kept / usual:,.{0 if kept >= 10 * usual else 1}f} times as long"
    return f"were {percent(abs(kept / usual - 1), 1)} {'slower' if kept > usual else 'faster'}"


def _pauses(answers: Mapping[str, Answer]) -> Iterator[str]:
    """Pauses that the recorded steps show too, or of a job of which none was recorded."""
    if "step_log_pauses" not in answers:
        return
    seen = answers["step_log_pauses"].table.filter(
        (pl.col("share") > WORTH_SAYING) & ((pl.col("counted") > 0) | (pl.col("recorded_steps") == 0))
    )
    for row in (
        seen.sort("per_step", descending=True, maintain_order=True)
        .unique("period", maintain_order=True)
        .iter_rows(named=True)
    ):
        text = costs(row)
        if row["recorded"]:
            have = "has" if row["recorded"] == 1 else "have"
            text += f"; {row['recorded']} of the {row['recorded_steps']} recorded steps {have} it"
        yield f"{text}."


def slowest(answers: Mapping[str, Answer]) -> Iterator[str]:
    """The slowest step by number, where it is far from the others."""
    if "step_log_slowest" not in answers or "step_log_summary" not in answers:
        return
    medians = answers["step_log_summary"].table.select("rank", "median").drop_nulls()
    far = (
        answers["step_log_slowest"].table.join(medians, on="rank")
        .filter(pl.col("longer") > 2 * pl.col("median"))
        .sort("duration", descending=True, maintain_order=True)
    )  # fmt: skip
    if far.is_empty():
        return
    row = far.row(0, named=True)
    cause = {**CAUSES, "optimizer": "in the optimizer"}.get(row["cause"] or "", "")
    on = f" of rank {row['rank']}" if medians.height > 1 else ""
    why = f", {cause}" if cause else ""
    yield f"The slowest step is step {row['step']}{on}: {milliseconds(row['duration'])}{why}."


def how_to_record(answers: Mapping[str, Answer], lost: Sequence[Quality] = ()) -> Iterator[str]:
    """The command that records steps in full, of a job of which the log alone is there.

    `lost` says why windows in which steps were to be recorded hold none.
    """
    if any(OWN_PROFILER in fact.text for fact in lost):
        yield (
            "The job runs a profiler of its own, and a second one would break it: remove it from the script, "
            "or record steps in which it does not run (`lostflops record --steps A-B -- COMMAND`)."
        )
        return
    log = answers["step_log_summary"].table if "step_log_summary" in answers else None
    made = 0 if log is None else int(log["steps"].max() or 0)  # pyright: ignore[reportArgumentType]
    if log is None or made > DEFAULT_LAST:
        yield "Record five steps in full: `lostflops record -- COMMAND`."
    elif made > 1:
        first = max(1, made - min(5, made // 2))
        yield f"Record its last steps in full: `lostflops record --steps {first}-{made - 1} -- COMMAND`."
    else:
        yield "A recording needs at least two steps: run the job longer with `lostflops record -- COMMAND`."


def job_notes(trace: Trace, answers: Mapping[str, Answer], run: Run) -> tuple[str, ...]:
    """What a reader must know of the job before its ledger."""
    ends = trace.table("rank_ends")
    told = () if ends is None else ending(ends.sort("rank").collect())
    lost = [fact for fact in trace.manifest.quality if fact.name == WINDOW_LOST]
    log_alone = run.formats <= {"step log", "monitor"}
    advice = how_to_record(answers, lost) if log_alone else ()
    return (*told, *steps(answers, log_alone), *slowest(answers), *advice)
