"""The first page in a terminal: verdict, step ledger, findings, and what could not be told.

Nothing that comes from a trace is read as markup or reaches the terminal as a control character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Skipped
from lostflops.trace import Quality

from .budget import Budget, Line
from .facts import lines
from .page import Page
from .quality import facts
from .run import Run
from .words import as_command, one_line, to_record

WIDEST = 120
BARS_FROM = 66  # columns; a narrower terminal shows the numbers without bars
COLORS = {"compute": "blue", "communication": "yellow", "copy": "green", "idle": "bright_black"}
MOST_QUALITY = 8
UNLIKE = 0.1  # of the mean step: a median further from it is shown
# For terminals that cannot show more than ASCII.
PLAIN = str.maketrans(
    {"█": "#", "·": "|", "–": "-", "…": "~", "µ": "u", "×": "x"} | dict.fromkeys("▏▎▍▌▋▊▉", "#")
)


def show(page: Page, console: Console, paths: str = "PATH", command: str = "") -> None:
    """Print the page. `paths` is what the user would type again to ask about the same steps of the same job,
    `command` what starts the job, where that is known.

    Commands stand whole on their lines, however wide, so that they can be copied.
    """
    width = min(console.width, WIDEST)
    if console.encoding.lower().startswith("utf"):
        _print(page, console, width, paths, command)
        return
    with console.capture() as captured:
        _print(page, console, width, paths, command)
    text = captured.get().translate(PLAIN).encode(console.encoding, "replace").decode(console.encoding)
    console.file.write(text)


def _print(page: Page, console: Console, width: int, paths: str, command: str) -> None:
    options = console.options.update(width=width, highlight=False, markup=False)
    for block in _blocks(page, width, paths, command):
        if isinstance(block, Text) and block.no_wrap:
            console.print(block, soft_wrap=True, highlight=False)
            continue
        for line in console.render_lines(block, options, pad=False):
            console.print(Segments([*_trimmed(line), Segment.line()]), end="")


def _trimmed(line: Sequence[Segment]) -> Sequence[Segment]:
    """The line without the blanks that only fill it, so that it can be compared and pasted."""
    kept = list(line)
    while kept:
        last = kept.pop()
        text = last.text.rstrip()
        if text:
            return [*kept, Segment(text, last.style)]
    return kept


def _blocks(page: Page, width: int, paths: str, command: str) -> Iterator[RenderableType]:
    yield Text(one_line(_described(page.run)), style="dim")
    yield Text()
    yield Text(one_line(page.verdict), style="bold")
    for note in page.notes:
        yield Padding(Text(one_line(note), style="dim"), (0, 0, 0, 2))
        yield from (Text(f"    {line}", no_wrap=True) for line in to_record(note, command))
    if page.budget is not None:
        yield Text()
        yield _ledger(page.budget, page.run, width)
    told = lines(page.facts, page.run.on_host)
    if told:
        yield Text()
        yield _facts(told)
    if page.findings:
        yield Text()
        for number, finding in enumerate(page.findings, 1):
            yield _finding(number, finding, page.budget, width >= BARS_FROM)
            if finding.recipe:
                show = f"lostflops recipe {as_command(finding.recipe)} {paths}"
                yield Text.assemble("   ", ("show     ", "dim"), one_line(show), no_wrap=True)
            for line in to_record(finding.next, command):
                yield Text.assemble("   ", ("record   ", "dim"), line, no_wrap=True)
        if len([f for f in page.findings if f.ns_per_step]) > 1:
            yield Text("   Gains of several findings do not add up.", style="dim")
    elif page.budget is not None:
        yield Text()
        yield Text(f"No finding: {page.no_finding}")
    if page.skipped and not page.untraced:
        yield Text()
        yield Text("not answered", style="bold")
        yield _not_answered(page.skipped)
    if page.quality:
        yield Text()
        yield Text("data quality", style="bold")
        yield _quality(page.quality)


def _facts(told: Sequence[tuple[str, str]]) -> Table:
    """A line each: what is too long for it, like a kernel's name, is cut."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for label, text in told:
        grid.add_row(Text(label, style="dim"), Text(one_line(text)))
    return grid


def _described(run: Run) -> str:
    return " · ".join(filter(None, (run.extent, run.device, f"{run.num_events:,} events")))


def _ledger(budget: Budget, run: Run, width: int) -> Table:
    """One row per line of the budget, its bar as long as its share of the step."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for narrowest in (len(f"{budget.shown} {budget.unit.name}"), len("100.0 %"))[
        : 2 if width >= BARS_FROM else 1
    ]:
        grid.add_column(justify="right", no_wrap=True, min_width=narrowest)
    grid.add_column(no_wrap=True)
    many = budget.num_windows > 1
    whole = (
        f"mean {run.span}" if many and not run.bounds else run.span,
        f"{budget.shown} {budget.unit.name}",
    )
    median = _median(budget)
    if width < BARS_FROM:
        grid.add_row(Text(whole[0], style="bold"), Text(whole[1], style="bold"))
        if median:
            grid.add_row(Text("median", "dim"), Text(median, "dim"))
        for line in budget.lines:
            grid.add_row(*_cells(line, budget.unit.name)[:2])
        return grid
    of = f"{'mean ' if run.bounds else ''}{run.windows}" if many else ""
    grid.add_row(
        Text(whole[0], style="bold"),
        Text(whole[1], style="bold"),
        Text("100.0 %", style="dim"),
        Text(of, "dim"),
    )
    if median:
        grid.add_row(Text("median", "dim"), Text(median, "dim"))
    labels = max(len(whole[0]), *(len(line.label) + 2 * line.depth + 2 for line in budget.lines))
    room = max(8, width - labels - len(whole[1]) - 14)
    for line in budget.lines:
        grid.add_row(*_cells(line, budget.unit.name), _bar(line, room))
    return grid


def _median(budget: Budget) -> str:
    """The median step, where the mean is of steps so unlike that it is no step of them."""
    if budget.median is None or abs(budget.median - budget.mean) <= UNLIKE * budget.mean:
        return ""
    return f"{budget.unit.show(round(budget.median / budget.unit.quantum))} {budget.unit.name}"


def _cells(line: Line, unit: str) -> tuple[Text, Text, Text]:
    style = "dim" if line.depth else ""
    indent = "  " * (line.depth + 1)
    return (
        Text(indent + one_line(line.label, 40), style=style),
        Text(f"{line.shown} {unit}", style=style),
        Text(line.share, style="dim"),
    )


def _bar(line: Line, room: int) -> Text:
    """Eighths of a block, so that the bar is right to about a tenth of a per cent of the step."""
    eighths = (2 * line.ns * room * 8 + line.whole) // (2 * line.whole)
    if not eighths and line.ns:
        eighths = 1
    whole, part = divmod(eighths, 8)
    text = "█" * whole + ("▏▎▍▌▋▊▉"[part - 1] if part else "")
    color = COLORS.get(line.account.partition(".")[0], "magenta")
    return Text(text, style=f"{color} dim" if line.depth else color)


def _finding(number: int, finding: Finding, budget: Budget | None, wide: bool) -> RenderableType:
    head = Table.grid(padding=(0, 1, 0, 0), expand=True)
    head.add_column(justify="right", width=2)
    head.add_column(ratio=1)
    cells = [Text(f"{number}."), Text(one_line(finding.claim), style="bold")]
    size = gain(finding, budget)
    if wide:
        head.add_column(justify="right", no_wrap=True)
        cells.append(Text(f" {size}", style="bold green"))
    head.add_row(*cells)
    lines = [] if wide else [("gain", size)]
    lines += [("evidence", fact) for fact in finding.evidence]
    if finding.doubt:
        lines.append(("doubt", finding.doubt))
    lines.append(("next", finding.next))
    body = Table.grid(padding=(0, 1, 0, 0))
    body.add_column(no_wrap=True, width=8)
    body.add_column()
    before = ""
    for label, text in lines:
        body.add_row(Text("" if label == before else label, style="dim"), Text(one_line(text)))
        before = label
    return Group(head, Padding(body, (0, 0, 0, 3)))


def gain(finding: Finding, budget: Budget | None) -> str:
    """What acting on a finding could save, as the page says it: size, share of the step, and how sure."""
    if finding.gain == "unknown":
        return "gain unknown"
    share = ""
    if budget is not None:
        share = f" ({percent(finding.ns_per_step * budget.num_windows, budget.ns)})"
    return f"{finding.gain} {milliseconds(finding.ns_per_step)}{share}"


def _quality(quality: Sequence[Quality]) -> RenderableType:
    told = facts(quality)
    pairs = [
        (fact.level, fact.text if fact.where == "run" else f"{fact.where}: {fact.text}") for fact in told
    ]
    if len(told) > MOST_QUALITY:
        pairs = [
            *pairs[:MOST_QUALITY],
            ("", f"and {len(told) - MOST_QUALITY} more; --html and --json show all"),
        ]
    return _pairs(pairs)


def _not_answered(skipped: Sequence[Skipped]) -> RenderableType:
    """Questions that lack the same thing share a line."""
    by_reason: dict[str, list[str]] = {}
    for question in skipped:
        by_reason.setdefault(question.reason, []).append(as_command(question.recipe))
    return Group(
        *(
            Group(
                Padding(Text(one_line(", ".join(names))), (0, 0, 0, 2)),
                Padding(Text(one_line(reason), style="dim"), (0, 0, 0, 4)),
            )
            for reason, names in by_reason.items()
        )
    )


def _pairs(pairs: Sequence[tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for label, text in pairs:
        grid.add_row(Text(one_line(label)), Text(one_line(text), style="dim"))
    return Padding(grid, (0, 0, 0, 2))
