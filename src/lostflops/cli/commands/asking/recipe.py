"""Ask one question and print or write its table.

`lostflops recipes` lists the recipes, `lostflops explain NAME` says what one computes, and
`lostflops recipe NAME --help` shows the options of that one. `--against B` asks two runs and joins their
rows:

  lostflops recipe kernel-summary runs/base --against runs/new
"""

from __future__ import annotations

import types
import typing
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lostflops import units
from lostflops.cli.arguments import traces
from lostflops.cli.arguments.recipe_names import recipe_names
from lostflops.cli.output import files, formats, notebooks
from lostflops.cli.output.formats.table import SHOWN_ROWS
from lostflops.cli.output.waiting import waiting
from lostflops.errors import BadOption, CannotAnswer, shown

if TYPE_CHECKING:
    import polars as pl

    from lostflops.cluster.workers import Workers
    from lostflops.recipe import Option
    from lostflops.session import Answer
    from lostflops.store.trace import Trace


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    name = parser.add_argument("name", metavar="NAME", help="the recipe, with dashes or underscores")
    setattr(name, "completer", recipe_names)  # noqa: B010 - argcomplete looks for it
    traces.add_paths(parser)
    traces.add_steps(parser)
    traces.add_dask(parser)
    parser.add_argument("--ranks", metavar="A,B-C", help="only the rows of these ranks")
    parser.add_argument(
        "--against",
        metavar="B",
        help="ask the run B too: every row with its values in PATH (before) and in B (after)",
    )
    parser.add_argument(
        "--format",
        choices=formats.names(),
        help="how to write the table; the default is the ending of --output, else 'table', for reading, "
        f"which stops after {SHOWN_ROWS} rows",
    )
    parser.add_argument("--output", metavar="F", type=Path, help="write to the file F")
    notebooks.add(parser)
    if any(not word.startswith("-") for word in words):
        _add_options(parser, words)


def _add_options(parser: ArgumentParser, words: Sequence[str]) -> None:
    from lostflops.recipes import named, recipes

    known = [word for word in words if word.replace("-", "_") in recipes()]
    if not known and words[0].startswith("-"):
        return  # the name may be missing, and argparse says so
    wanted = named(known[0] if known else words[0])
    if not wanted.options:
        return
    group = parser.add_argument_group(f"options of {wanted.name}")
    for option in wanted.options:
        group.add_argument(flag(option), dest=f"option_{option.name}", default=SUPPRESS, **_how(option))


def flag(option: Option) -> str:
    """An option of a recipe as the command line spells it."""
    return "--" + option.name.replace("_", "-")


def _how(option: Option) -> dict[str, Any]:
    """An option's type in argparse's words; one that is not given is not passed on."""
    default = "" if option.default is None else f" (default: {option.default})"
    how: dict[str, Any] = {"help": (option.help + default).replace("%", "%%")}
    hint = option.type
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(t for t in typing.get_args(hint) if t is not type(None))
    if typing.get_origin(hint) is Literal:
        return {**how, "choices": typing.get_args(hint)}
    if hint is bool:
        return {**how, "action": BooleanOptionalAction}
    return {**how, "type": hint, "metavar": hint.__name__.upper()}


def run(given: Namespace) -> None:
    form = formats.asked(given.format, given.output)
    inputs = [*given.paths, *([] if given.against is None else [given.against])]
    if given.output is not None:
        files.check(given.output, inputs)
    notebooks.check(given)
    written = {"output": given.output, "notebook": given.notebook and Path(given.notebook)}
    files.check_apart({name: target for name, target in written.items() if target is not None})
    from lostflops.recipes import named
    from lostflops.session import Skipped

    wanted = named(given.name)
    ranks = None if given.ranks is None else units.numbers(given.ranks, "--ranks", "ranks")
    options = {k.removeprefix("option_"): v for k, v in vars(given).items() if k.startswith("option_")}
    with waiting() as tell, traces.workers(given, tell) as workers:
        trace = traces.opened(given, tell, workers=workers)
        if tell:
            tell(wanted.name, 1.0)
        said = traces.session(trace, workers).run(wanted.name, **options)
        if isinstance(said, Skipped):
            raise CannotAnswer(said.recipe, said.reason)
        if given.against is not None:
            said = _against(given, said, options, workers)
    if given.notebook is not None:
        content = notebooks.of_recipe(given, said.recipe, options)
        with files.replacing(Path(given.notebook), inputs) as place:
            place.write_bytes(content)
    table = said.table if ranks is None else _of(ranks, trace, said)
    formats.put(form, said, table, given.output, inputs)


def _against(given: Namespace, before: Answer, options: dict[str, Any], workers: Workers | None) -> Answer:
    """The answer joined with that of the other run."""
    from lostflops.experiment.difference.against import against
    from lostflops.session import Skipped

    trace = traces.opened(Namespace(**{**vars(given), "paths": [given.against]}), workers=workers)
    after = traces.session(trace, workers).run(before.recipe.name, **options)
    if isinstance(after, Skipped):
        raise CannotAnswer(after.recipe, f"{shown(given.against)}: {after.reason}")
    return against(before, after)


def _of(asked: frozenset[int], trace: Trace, said: Answer) -> pl.DataFrame:
    """The rows of those ranks. All were computed: without one, the others' waiting would differ."""
    import polars as pl

    if "rank" not in said.table.columns:
        raise BadOption(f"The table of '{said.recipe.name}' is not by rank.", "leave --ranks out.")
    known = trace.table("ranks")
    present = set[int]() if known is None else set(known.collect()["rank"].to_list())
    absent = sorted(asked - present)
    if absent:
        raise BadOption(f"This run has no rank {absent[0]}.", f"it has {len(present)}, up to {max(present)}.")
    return said.table.filter(pl.col("rank").is_in(sorted(asked)))
