"""A first budget, from a run: limits that it holds and that a run which is clearly worse does not."""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.errors import LostflopsError
from lostflops.experiment.difference.noise import band
from lostflops.experiment.difference.side import Side, side
from lostflops.finding import percent
from lostflops.store.trace import Trace
from lostflops.units import milliseconds

ROOM = 0.05  # a limit leaves at least so much of its amount
LEAST = 0.01  # of the step: groups and accounts with less get no limit of their own
LEAST_ROOM = 0.005  # of the step: what small accounts may grow by in any case
FEW_DIGITS = 3


def first(trace: Trace, name: str) -> str:
    """The text of a budget. Raises LostflopsError for a run that nothing is known of."""
    run = side(trace, name)
    if run.missing:
        raise LostflopsError(
            f"No budget can be made of this run: {run.missing}.",
            "record a few whole steps: `lostflops record -- python train.py`.",
        )
    return "\n".join(_lines(run)) + "\n"


def _lines(run: Side) -> Iterator[str]:
    spent = run.budget
    assert spent is not None
    many, mean = spent.num_windows, spent.mean
    yield "# Limits of a training run, checked with `lostflops check RUN --budget THIS_FILE`."
    yield f"# Written from a run {run.run.windows}; each limit leaves room for the noise of its steps."
    yield "# An amount is what there may be at most: a time per step, or a share of the step."
    yield ""
    yield "[limits]"
    yield _line("step", mean, _room(run, mean, [str(a) for a in run.ledger["account"].unique()]), mean)
    for line in spent.lines:
        if line.account == "compute" or line.ns < LEAST * spent.ns or line.account == "idle.unexplained":
            continue
        accounts = [line.account] if line.depth else [a.account for a in spent.parts(line.account)]
        ns = line.ns / many
        room = max(_room(run, ns, accounts or [line.account]), LEAST_ROOM * mean)
        yield _line(line.account, ns, room, mean)
    if compute := spent.of("compute"):
        least = max(0.0, 100 * compute / spent.ns - 100 * max(ROOM, _spread_of_compute(run)))
        yield (
            f'compute = {{ at_least = "{least:.0f} %" }}'.ljust(44)
            + f"# was {percent(compute, spent.ns)} of the step"
        )
    yield ""
    yield "# A column of any recipe (`lostflops recipes` lists them):"
    yield "# [[recipes]]"
    yield '# recipe = "kernel-summary"'
    yield '# column = "per_step"'
    yield '# rows = { family = "optimizer" }'
    yield '# of = "sum"                               # or largest, smallest, mean'
    yield '# at_most = "12 ms"'
    yield ""
    yield "# How much more than a baseline there may be; `--baseline RUN` names another one."
    yield "# [regression]"
    yield '# baseline = "runs/base"                   # from the folder of this file'
    yield '# step = "3 %"'


def _room(run: Side, ns: float, accounts: list[str]) -> float:
    """What the same job may take more in another recording: chance, and never less than a share."""
    each = run.spent(*accounts)
    return max(ROOM * ns, band(each, each) or 0)


def _spread_of_compute(run: Side) -> float:
    """The noise of the share of compute."""
    spent, lengths = run.spent("compute"), list(run.lengths.values())
    shares = [of / length for of, length in zip(spent, lengths, strict=True) if length]
    scaled = [share * 10**9 for share in shares]
    return (band(scaled, scaled) or 0) / 10**9


def _line(name: str, ns: float, room: float, step: float) -> str:
    key = f'"{name}"' if "." in name else name
    share = "" if name == "step" else f", {percent(ns, step)} of the step"
    return f'{key} = "{milliseconds(_up(ns + room))}"'.ljust(44) + f"# was {milliseconds(ns)}{share}"


def _up(ns: float) -> int:
    """The next amount that three digits tell exactly."""
    whole = int(ns) + 1
    size = 10 ** max(0, len(str(whole)) - FEW_DIGITS)
    return -(-whole // size) * size
