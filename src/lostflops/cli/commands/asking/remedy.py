"""Show what to change, in the words of your framework.

Without a NAME it lists the remedies. With one it prints what to type, how safe that is, what it costs, how to
undo it, and how a recording shows that it took effect. Your framework is that of the recorded run behind the
name, or what `--for` says; without both, all are shown.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting
from lostflops.errors import BadOption, LostflopsError, NoSuchRemedy, shown
from lostflops.naming import framework_names

if TYPE_CHECKING:
    from lostflops.remedies import Setting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    name = parser.add_argument("name", metavar="NAME", nargs="?", help="the remedy, as the page names it")
    setattr(name, "completer", _names)  # noqa: B010 - argcomplete looks for it
    traces.add_paths(parser, needed=False)
    traces.add_steps(parser)
    parser.add_argument(
        "--for",
        dest="framework",
        metavar="FRAMEWORK",
        type=framework_names.called,
        choices=list(framework_names.NAMES),
        help=f"show the change for one of {', '.join(framework_names.NAMES)}",
    )
    parser.add_argument(
        "--json", metavar="F", help="also write it as one JSON document to F; '-' prints it instead"
    )


def _names(**_: object) -> list[str]:
    from lostflops.remedies import REMEDIES

    return [*REMEDIES]


def run(given: Namespace) -> None:
    files.check_document(given.json, given.paths)
    framework = framework_names.NAMES.get(given.framework or "", "")
    if given.name is None:
        _list(given.json, framework)
        return
    from rich.console import Console

    from lostflops.remedies import named
    from lostflops.report.remedy import RemedyForJob

    try:
        named(given.name)  # a wrong one is said before minutes of reading
    except NoSuchRemedy as error:
        raise _meant_a_run(given.name) or error from None
    trace = None
    if given.paths:
        with waiting() as tell:
            trace = traces.opened(given, tell)
    typed = traces.again(given.paths, given, trace.steps) if trace else ""
    if trace is None:
        found = RemedyForJob.asked(given.name, framework)
    else:
        with trace.reading():
            found = RemedyForJob.asked(given.name, framework, trace, typed)
    if not files.document(given.json, found.to_json()):
        found.show(Console())


def _meant_a_run(name: str) -> LostflopsError | None:
    """What to say where a run stands in the place of a remedy."""
    try:
        is_there = Path(name).exists()
    except OSError:
        return None
    if not is_there:
        return None
    return BadOption(
        f"'{shown(name)}' is a path, not a remedy.",
        f"the name comes first, as in `lostflops remedy loader-workers {shown(name)}`; `lostflops remedy` "
        "lists them.",
    )


def _list(target: str | None, framework: str) -> None:
    from lostflops.report import remedy as shown_as

    job: Setting | None = shown_as.of_framework(None, framework)
    by_theme = shown_as.listed(job)
    everything = [one for there in by_theme.values() for one in there]
    if files.document(target, {"remedies": [shown_as.summary(one) for one in everything]}):
        return
    width = max(len(one.name) for one in everything)
    for number, (theme, there) in enumerate(by_theme.items()):
        print(f"{'' if not number else chr(10)}{theme}")
        for one in there:
            print(f"  {one.name:{width}}  {one.does}")
