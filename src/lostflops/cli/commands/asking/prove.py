"""Say how much a change gained, and how sure that is.

Starts both commands pair by pair, in an order that is drawn, and compares the steps of their logs. Nothing is
recorded in full, so that profiling disturbs neither. It stops as soon as it is sure. With two recorded runs
instead it says what those can tell. With the folder of an earlier experiment it reads the results again.

examples:
  lostflops prove --before 'python train.py' --after 'python train.py --workers 4'
  lostflops prove --before 'python train.py' --after 'python train.py --bf16' --steps 60 --pairs 6
  lostflops prove runs/base runs/workers-4
  lostflops prove runs/prove-20261101-101500 --more 5

exit status: 0 measured, 1 what --expect asks for is not shown or the loss diverged, 2 could not measure
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lostflops.cli.output import files

if TYPE_CHECKING:
    from lostflops.experiment.proof.proven import Proven
    from lostflops.experiment.proof.running.folder import PlanLine

NOT_SHOWN, NOT_MEASURED = 1, 2
PAIRS, FEWEST = 10, 6


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.usage = (
        "lostflops prove --before CMD --after CMD [options]\n"
        "       lostflops prove A B [options]\n"
        "       lostflops prove RESULTS [--more N]"
    )
    parser.add_argument(
        "paths",
        metavar="A B",
        nargs="*",
        help="two recorded runs: each a run folder, a callback's output or a glob in quotes; or the folder "
        "of an earlier experiment",
    )
    parser.add_argument("--before", metavar="CMD", help="the command before the change, as a shell takes it")
    parser.add_argument("--after", metavar="CMD", help="the command after the change")
    parser.add_argument(
        "--pairs",
        metavar="N",
        help=f"start each command N times at most (default {PAIRS}; fewer than {FEWEST} tell no difference)",
    )
    parser.add_argument(
        "--seed", metavar="N", help="draw the order of the starts again that the results of another name"
    )
    parser.add_argument("--steps", metavar="N", help="end each start after N steps (default: when it ends)")
    parser.add_argument(
        "--step-on", metavar="WHAT", default="optimizer", help="what ends a step, as for `lostflops record`"
    )
    parser.add_argument("--no-early-stop", action="store_true", help="run all pairs, and look once")
    parser.add_argument(
        "--no-rehearsal", action="store_true", help="do not start each command once before the first pair"
    )
    parser.add_argument(
        "--more", metavar="N", help="add N pairs to the experiment in the folder that is named"
    )
    parser.add_argument(
        "--see", metavar="SHARE", default="1%", help="a difference smaller than this need not be told (1%%)"
    )
    parser.add_argument(
        "--measure",
        choices=("mean", "median", "p10"),
        default="mean",
        help="which step decides (default mean: a median hides stalls)",
    )
    parser.add_argument(
        "--per",
        choices=("step", "token", "sample"),
        help="what time is taken per (default: step, or what the job told where the sides' work differs)",
    )
    parser.add_argument(
        "--noise", metavar="RUN", nargs="+", default=[], help="three or more starts of one command, for A B"
    )
    parser.add_argument(
        "--predicted",
        metavar="F",
        help="the prediction to hold it against: a file of `whatif --json` or `why --json`",
    )
    parser.add_argument("--edit", metavar="EDIT", default="", help="which prediction of that file")
    parser.add_argument(
        "--expect", choices=("faster", "not-slower"), help="exit with 1 unless that is shown, for CI"
    )
    parser.add_argument(
        "--at-most", metavar="SHARE", default="1%", help="how much slower is not slower yet (1%%)"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, help="the folder to make (default runs/prove- and the time)"
    )
    parser.add_argument("--html", metavar="F", type=Path, help="also write the page, with a plot, to F")
    parser.add_argument(
        "--json", metavar="F", help="also write the proof as one JSON document to F; '-' prints it instead"
    )


def run(given: Namespace) -> None:
    from dataclasses import replace

    from rich.console import Console

    from lostflops.errors import BadOption
    from lostflops.experiment.proof import prediction
    from lostflops.experiment.proof.shown import terminal

    _check(given)
    at_most = _share("--at-most", given.at_most)
    if given.edit and not given.predicted:
        raise BadOption(
            "--edit chooses among predictions, and no file of them is named.", "add `--predicted F`."
        )
    said = prediction.read(Path(given.predicted), given.edit) if given.predicted else None
    found = replace(_proven(given), prediction=said)
    if given.html:
        from lostflops.experiment.proof.shown import html

        with files.replacing(given.html) as file:
            file.write_text(html.html(found), encoding="utf-8")
    if not files.document(given.json, found.to_json()):
        terminal.show(found, Console())
    sys.stdout.flush()
    if not found.finished or (found.stopped and found.low is None):
        raise SystemExit(NOT_MEASURED)
    if given.expect and not found.expected(given.expect, at_most):
        whys = {"diverged": ": the loss diverged", "untold": ": no loss is told after the change"}
        why = whys.get(found.loss.parity, "")
        print(f"lostflops: --expect {given.expect} is not shown{why}", file=sys.stderr)
        raise SystemExit(NOT_SHOWN)


def _check(given: Namespace) -> None:
    """Raise what can be known to be wrong before hours of runs."""
    from lostflops.errors import BadOption

    files.check_document(given.json, given.paths)
    if given.html:
        files.check(given.html, given.paths)
    if given.html and given.json not in (None, "-"):
        files.check_apart({"html": given.html, "json": Path(given.json)})
    commands = given.before is not None or given.after is not None
    if len(given.paths) > 2:
        raise BadOption(
            f"{len(given.paths)} paths are named, and a change has two sides.",
            "put several runs of one side into a glob in quotes: `lostflops prove 'runs/a-*' 'runs/b-*'`.",
        )
    if commands and (len(given.paths) == 2 or (given.paths and given.more is None)):
        raise BadOption("Both runs and commands are named.", "name either two runs, or --before and --after.")
    if not commands and not given.paths:
        raise BadOption(
            "Nothing to compare is named.",
            "name two runs, or the commands: `lostflops prove --before CMD --after CMD`.",
        )
    if commands and not (given.before and given.after):
        raise BadOption("One of the two commands is missing.", "give both --before and --after.")
    if given.more is not None and len(given.paths) != 1:
        raise BadOption("--more needs the folder of an experiment.", "`lostflops prove RESULTS --more 5`.")


def _proven(given: Namespace) -> Proven:
    from lostflops.errors import BadOption, shown
    from lostflops.experiment.proof import recordings
    from lostflops.experiment.proof.running import folder as folders
    from lostflops.experiment.proof.running import loop

    if given.paths and given.more is None:
        return recordings.prove(*given.paths, noise=given.noise, measure=given.measure, per=given.per)
    if given.more is not None:
        path = Path(given.paths[0])
        if not folders.is_one(path):
            raise BadOption(f"'{shown(path)}' is no experiment of `lostflops prove`.", "check the path.")
        folder = folders.read(path)
        if given.before:
            folder.plan.before, folder.plan.after = given.before, given.after
        folders.runnable(folder.plan)
        _not_off()
        folder.extend(_number("--more", given.more))
    else:
        plan = _plan(given)
        _not_off()
        folder = folders.made(given.output or _free(Path("runs")), plan)
        if plan.pairs < FEWEST:
            _say(f"fewer than {FEWEST} pairs have too few orders of starts to tell a difference from chance")
    return loop.run(folder, _say, rehearse=not given.no_rehearsal)


def _plan(given: Namespace) -> PlanLine:
    from lostflops.capture.record import recording
    from lostflops.experiment.proof.running.folder import SEED_BITS, PlanLine, drawn_seed

    stepping = recording.step_on(given.step_on)
    return PlanLine(
        before=given.before,
        after=given.after,
        pairs=PAIRS if given.pairs is None else _number("--pairs", given.pairs),
        early_stop=not given.no_early_stop,
        see=_share("--see", given.see),
        measure=given.measure,
        per=given.per,
        steps=None if given.steps is None else _number("--steps", given.steps),
        step_on=None if stepping is None else (stepping.module, stepping.function),
        seed=drawn_seed() if given.seed is None else _number("--seed", given.seed, 0, (1 << SEED_BITS) - 1),
    )


def _not_off() -> None:
    import os

    from lostflops.errors import BadOption

    if os.environ.get("LOSTFLOPS_OFF"):
        raise BadOption("LOSTFLOPS_OFF is set, so no step would be seen.", "unset it.")


def _number(option: str, text: str, least: int = 1, most: int = 10_000) -> int:
    from lostflops.errors import BadOption
    from lostflops.units import count

    number = count(text, option)
    if not least <= number <= most:
        raise BadOption(f"{option} takes a number from {least} to {most:,}.", f"write `{option} 10`.")
    return number


def _share(option: str, text: str) -> float:
    """A share as people write it: '1%', '1 %' or '0.01'."""
    from lostflops.errors import BadOption, shown

    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = -1.0
    share = number / 100 if text.strip().endswith("%") else number
    if not 0 < share < 1:
        raise BadOption(f"{option} '{shown(text)}' is no share.", f"write `{option} 2%`.")
    return share


def _free(runs: Path) -> Path:
    """A folder named by the time."""
    name = f"prove-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(
        path for n in range(1, 1000) if not (path := runs / (name if n == 1 else f"{name}-{n}")).exists()
    )


def _say(text: str) -> None:
    print(f"lostflops: {text}", file=sys.stderr, flush=True)
