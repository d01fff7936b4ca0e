"""A difference in a terminal: the verdict, the accounts, what changed in them, and the setups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from lostflops.report.first_page.budget import words
from lostflops.report.terminal import WIDEST, put, wrapped
from lostflops.report.words.safe import one_line
from lostflops.units import milliseconds

from .amounts import Shared, shared
from .outline import outline, signed

if TYPE_CHECKING:
    from ..compare import Difference
    from ..side import Side

NAME = 64  # characters of a name
LONGEST_FACT = 36  # of the name of what differs
LEAST_NAME = 16  # the same in a narrow terminal
CALLS_FROM = 96  # columns; a narrower terminal does not show how often kernels begin
MOST_MISMATCHES, MOST_RANKS, MOST_MODULES = 12, 4, 6
BARS_FROM = 84  # columns; a narrower terminal shows no bars
HALF = 10  # columns of a bar on each side
# Ranks that changed more or less than the step by these shares of its change and of itself are named.
UNLIKE, UNLIKE_STEP = 0.1, 0.01


def show(found: Difference, console: Console, everything: bool = False) -> None:
    """Print the page. `everything` lists every mismatch, rank and module."""
    width = min(console.width, WIDEST)
    put(_blocks(found, width, everything), console, width)


def _blocks(found: Difference, width: int, everything: bool) -> Iterator[RenderableType]:
    for label, side in (("before", found.before), ("after", found.after)):
        yield Text(f"{label:<6}  {_described(side)}  {one_line(side.name)}", style="dim", no_wrap=True)
    yield Text()
    for line in wrapped(found.sentence, width):
        yield Text(line, style="bold", no_wrap=True)
    for note in found.notes:
        for line in wrapped(note, width - 2):
            yield Text(f"  {line}", style="dim", no_wrap=True)
    if found.is_accounted:
        yield Text()
        yield _accounts(found, width)
        if rows := _outline(found, width):
            yield Text()
            yield Text("what changed, the largest first", style="bold")
            yield rows
        yield from _ranks(found, everything)
        yield from _modules(found, everything)
    yield from _mismatches(found, width, everything)


def _described(side: Side) -> str:
    return one_line(" · ".join(filter(None, (side.run.extent, side.run.device))))


def _accounts(found: Difference, width: int) -> Table:
    """Every account before and after; what is shown adds up, in both directions."""
    table = shared(found.waterfall)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for _ in range(4):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    unit = table.unit.name
    grid.add_row("", *(Text(t, style="dim") for t in (f"before, {unit}", "after", "change", "±", "")))
    on_host = found.before.run.on_host and found.after.run.on_host
    most = max((abs(row.change) for row in table.rows), default=0)
    for row in table.rows:
        if row.before == row.after == 0:  # less than is shown
            continue
        style = "" if row.depth else "bold"
        grid.add_row(
            Text(f"{'  ' * (row.depth + 1)}{words(row.account, on_host).label}", style=style),
            Text(table.unit.show(row.before), style=style),
            Text(table.unit.show(row.after), style=style),
            Text(table.signed(row.change), style=style),
            Text("" if row.noise_ns is None else table.unit.show(row.noise_ns // table.unit.quantum)),
            _bar(row, most) if width >= BARS_FROM and row.is_leaf else Text(),
        )
    step = table.step
    grid.add_row(
        *(
            Text(text, style="bold")
            for text in (
                found.after.run.span,
                table.unit.show(step.before),
                table.unit.show(step.after),
                table.signed(step.change),
                "" if step.noise_ns is None else table.unit.show(step.noise_ns // table.unit.quantum),
                "",
            )
        )
    )
    return grid


def _bar(row: Shared, most: int) -> Text:
    """A bar to the left for less time, to the right for more."""
    long = round(HALF * abs(row.change) / most) if most else 0
    if row.change < 0:
        return Text(" " * (HALF - long) + "█" * long, style="green")
    return Text(" " * HALF + "█" * long, style="red")


def _outline(found: Difference, width: int) -> Table | None:
    on_host = found.before.run.on_host and found.after.run.on_host
    rows = list(outline(found.waterfall, on_host))
    if not rows:
        return None
    changes = [f"  {signed(row.change.ns)}" for row in rows]
    amounts = [f"{milliseconds(row.change.before_ns)} → {milliseconds(row.change.after_ns)}" for row in rows]
    calls = [row.calls if width >= CALLS_FROM else "" for row in rows]
    taken = sum(max(map(len, texts)) + 2 for texts in (changes, amounts, calls) if any(texts))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("right", "left", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for row, change, amount, called in zip(rows, changes, amounts, calls, strict=True):
        style = "" if row.depth else "bold"
        indent = "  " * row.depth
        label = row.label(max(width - taken - len(indent) - 4, LEAST_NAME))
        grid.add_row(
            Text(change, style=style),
            Text(f"{indent}{label}", style=style),
            Text(amount, style="dim"),
            Text(called, style="dim"),
        )
    return grid


def _ranks(found: Difference, everything: bool) -> Iterator[RenderableType]:
    """The ranks that changed unlike the step, or all."""
    known = [one for one in found.ranks if one.ns is not None]
    step = found.waterfall.step
    least = max(UNLIKE * abs(step.ns), UNLIKE_STEP * step.before_ns)
    unlike = [one for one in known if abs((one.ns or 0) - step.ns) > least]
    shown = list(found.ranks) if everything else unlike[:MOST_RANKS]
    if len(found.ranks) < 2 or not shown:
        return
    on_host = found.after.run.on_host
    yield Text()
    yield Text("ranks" if everything else "ranks that changed unlike the others", style="bold")
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("right", "left", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for one in shown:
        before, after = ("–" if ns is None else milliseconds(ns) for ns in (one.before_ns, one.after_ns))
        most = f"mostly {words(one.account, on_host).label}: {signed(one.account_ns)}"
        grid.add_row(
            Text(f"  {signed(one.ns or 0) if one.ns is not None else '–'}"),
            Text(f"rank {one.rank}"),
            Text(f"{before} → {after}", style="dim"),
            Text(most if one.account and one.account_ns else "", style="dim"),
        )
    yield grid


def _modules(found: Difference, everything: bool) -> Iterator[RenderableType]:
    shown = [one for one in found.modules if one.ns][: None if everything else MOST_MODULES]
    if not shown:
        return
    yield Text()
    yield Text("compute by the module that launched it", style="bold")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    for one in shown:
        grid.add_row(
            Text(f"  {signed(one.ns)}"),
            Text(one_line(one.path[0] or "in no module, or in a backward pass", NAME)),
            Text(f"{milliseconds(one.before_ns)} → {milliseconds(one.after_ns)}", style="dim"),
        )
    yield grid


def _mismatches(found: Difference, width: int, everything: bool) -> Iterator[RenderableType]:
    if not found.mismatches:
        return
    shown: Sequence[tuple[str, str, str]] = [(m.name, m.before, m.after) for m in found.mismatches]
    shown = shown if everything else shown[:MOST_MISMATCHES]
    yield Text()
    yield Text("the setups differ", style="bold")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for _ in range(2):
        grid.add_column(overflow="fold")
    room = max(16, (width - LONGEST_FACT - 8) // 2)
    for name, before, after in (("", "before", "after"), *shown):
        style = "" if name else "dim"
        grid.add_row(
            Text(f"  {one_line(name, LONGEST_FACT)}"),
            Text(one_line(before, 2 * room), style=style),
            Text(one_line(after, 2 * room), style=style),
        )
    yield grid
    left = len(found.mismatches) - len(shown)
    if left > 0:
        yield Text(f"  {left} more: add `--all` to see them.", style="dim")
