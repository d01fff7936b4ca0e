"""The first page in a terminal: verdict, step ledger, findings, and what is not known.

Nothing that comes from a trace is read as markup or reaches the terminal as a control character.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from lostflops.finding import NOTHING, Finding, PredictedGain, milliseconds, percent
from lostflops.session import Skipped

from .first_page.budget import Budget, Line
from .first_page.facts import FactLine, lines
from .first_page.page import Page
from .first_page.quality import facts
from .first_page.run import Run
from .words.safe import advice, as_command, one_line

WIDEST = 120
BARS_FROM = 66  # columns; a narrower terminal shows the numbers without bars
COLORS = {"compute": "blue", "communication": "yellow", "copy": "green", "idle": "bright_black"}
MOST_FINDINGS = 5  # before `--all`
MOST_WARNINGS = 3
MOST_EVIDENCE = 3  # lines of a finding, its contributors among them
MOST_CONTRIBUTORS = 3
MOST_REMEDIES = 2  # commands of a finding
LABEL = 13  # columns before the text of a finding's line
# What stays on one line: a command of ours, a number with its unit, a word.
WORD = re.compile(r"`lostflops [^`]*`\S*|\S*\d (?:ns|µs|ms|s|%)(?!\w)\S*|\S+")
UNLIKE = 0.1  # of the mean step: a median further from it is shown
# For terminals that cannot show more than ASCII.
PLAIN = str.maketrans(
    {"█": "#", "·": "|", "–": "-", "…": "~", "µ": "u", "×": "x", "±": "~", "→": ">", "−": "-"}
    | dict.fromkeys("▏▎▍▌▋▊▉", "#")
)


def show(page: Page, console: Console, paths: str = "", everything: bool = False, command: str = "") -> None:
    """Print the page. `paths` is what the user would type again to ask about the same steps of the same job;
    by default it is what the page itself knows. `command` is what starts the job, where that is known.

    Commands stand whole on their lines, however wide, so that they can be copied. `everything` also lists
    what the page otherwise only counts: unanswered questions, facts about the recording, smaller findings.
    """
    width = min(console.width, WIDEST)
    put(_Blocks(page, width, paths or page.paths, everything, command), console, width)


def put(blocks: Iterable[RenderableType], console: Console, width: int) -> None:
    """Print the blocks of a page in signs that the terminal has. What must not be wrapped stays whole."""
    if console.encoding.lower().startswith("utf"):
        _print(blocks, console, width)
        return
    with console.capture() as captured:
        _print(blocks, console, width)
    text = captured.get().translate(PLAIN).encode(console.encoding, "replace").decode(console.encoding)
    console.file.write(text)


def _print(blocks: Iterable[RenderableType], console: Console, width: int) -> None:
    options = console.options.update(width=width, highlight=False, markup=False)
    for block in blocks:
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


class _Blocks:
    """What the page consists of, from top to bottom."""

    def __init__(self, page: Page, width: int, paths: str, everything: bool, command: str) -> None:
        self._page = page
        self._width = width
        self._paths = paths
        self._everything = everything
        self._command = command

    def __iter__(self) -> Iterator[RenderableType]:
        page = self._page
        yield Text(one_line(_described(page.run)), style="dim")
        yield Text()
        for line in wrapped(page.verdict, self._width):
            yield Text(line, style="bold", no_wrap=True)
        for note in page.notes:
            for line in wrapped(advice(note, self._paths, self._command), self._width - 2):
                yield Text(f"  {line}", style="dim", no_wrap=True)
        if page.budget is not None:
            yield Text()
            yield _ledger(page.budget, page.run, self._width)
        told = lines(page.facts, page.run.on_host)
        if told:
            yield Text()
            yield _facts(told, self._width)
        yield from self._findings()
        yield from self._about_the_recording()

    def _findings(self) -> Iterator[RenderableType]:
        page = self._page
        shown = page.findings if self._everything else page.findings[:MOST_FINDINGS]
        if not shown and page.budget is not None:
            yield Text()
            yield Text(f"No finding: {page.no_finding}")
        for number, finding in enumerate(shown, 1):
            yield Text()
            yield from self._finding(number, finding)
        if told := about_gains(shown):
            yield Text()
            for line in wrapped(told, self._width):
                yield Text(line, style="dim", no_wrap=True)

    def _finding(self, number: int, finding: Finding) -> Iterator[RenderableType]:
        for i, line in enumerate(wrapped(headline(finding, self._page.run.is_whole), self._width - 4)):
            text = Text(f"{number:>2}. " if not i else "    ", no_wrap=True)
            yield text.append_text(
                Text.assemble(*((t, "bold" if b else "") for t, b in parted(line, finding)))
            )
        facts = [_contributors(finding)] if finding.contributors else []
        facts += finding.evidence
        if not self._everything:
            facts = facts[:MOST_EVIDENCE]
        lines = [("why", fact) for fact in facts]
        if finding.doubt:
            lines.append(("doubt", finding.doubt))
        lines.append(("next", advice(finding.next, self._paths, self._command)))
        lines.append(("gain", gain(finding, self._page.budget, self._page.run.is_whole)))
        shown = len(finding.remedies or ()) if self._everything else MOST_REMEDIES
        lines += [("remedy", f"`{asked}`") for asked in remedies(finding, self._paths)[:shown]]
        if asked := whatif(finding, self._paths):
            lines.append(("what if", f"`{asked}`"))
        if finding.recipe:
            lines.append(("show", f"`lostflops recipe {as_command(finding.recipe)} {self._paths}`"))
        before = ""
        for label, text in lines:
            yield from self._labelled(
                "" if label == before else label, text, bare=label in ("show", "remedy", "what if")
            )
            before = label

    def _labelled(self, label: str, text: str, bare: bool = False) -> Iterator[RenderableType]:
        for i, line in enumerate(wrapped(text, self._width - LABEL)):
            said = line.strip("`") if bare else line
            yield Text.assemble(
                ("    " + (label if not i else "")).ljust(LABEL), one_line(said), no_wrap=True
            )

    def _about_the_recording(self) -> Iterator[RenderableType]:
        page = self._page
        told = facts(page.quality)
        if self._everything:
            if page.skipped and not page.untraced:
                yield Text()
                yield Text("not answered", style="bold")
                yield _not_answered(page.skipped)
            if told:
                yield Text()
                yield Text("data quality", style="bold")
                yield _pairs([(fact.level, fact.said) for fact in told])
            return
        shown = [fact for fact in told if fact.is_warning][:MOST_WARNINGS]
        if shown:
            yield Text()
            yield _pairs([(fact.level, fact.said) for fact in shown])
        left = (
            (len(page.findings) - MOST_FINDINGS, "smaller finding", ""),
            (0 if page.untraced else len(page.skipped), "question", " not answered"),
            (len(told) - len(shown), "fact", " about the recording"),
        )
        counted = [f"{n} {what}{'s' * (n != 1)}{which}" for n, what, which in left if n > 0]
        if counted:
            yield Text()
            yield Text(f"Not shown: {', '.join(counted)}. Add `--all` to see them.", style="dim")


def wrapped(text: str, width: int) -> Iterator[str]:
    """The words of `text` in lines of `width` columns; a command of ours is one word, and never cut."""
    line = ""
    for word in WORD.findall(one_line(text)):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            yield line
            line = ""
        if word.startswith("`lostflops ") or cell_len(word) <= max(width, 1):
            line = f"{line} {word}" if line else word
            continue
        *whole, line = chop_cells(word, max(width, 1))
        yield from whole
    yield line


def headline(finding: Finding, whole: bool = False) -> str:
    """The claim, with what the finding costs now in front where it does not say that itself."""
    if finding.size <= 0 or any(is_cost for _, is_cost in parted(finding.claim, finding)):
        return finding.claim
    return f"{milliseconds(finding.size)}{'' if whole else ' per step'}: {finding.claim}"


def parted(text: str, finding: Finding) -> list[tuple[str, bool]]:
    """Some of a claim, parted where it says what the finding costs per step; whether each part says it."""
    if finding.size <= 0:
        return [(text, False)]
    now = milliseconds(finding.size)
    # Looking for the words alone first costs a claim of a million characters nothing.
    parts = re.split(rf"((?<![\d.,]){re.escape(now)}(?!\w))", text, maxsplit=1) if now in text else [text]
    return [(part, i % 2 == 1) for i, part in enumerate(parts) if part]


def _contributors(finding: Finding) -> str:
    """What the finding is made of, the largest first."""
    told = ", ".join(finding.contributors[:MOST_CONTRIBUTORS])
    return f"mostly {told}" if finding.is_mostly_these else f"partly {told}"


def _facts(told: Sequence[FactLine], width: int) -> Table:
    """What is too long for its line goes on in the next; a kernel's name is cut, and the cut is shown."""
    longest = max(len(line.label) for line in told)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=longest)
    grid.add_column(no_wrap=True)
    room = max(1, width - longest - 2)
    for line in told:
        if line.may_be_cut:
            text = Text(one_line(line.text))
            text.truncate(room, overflow="ellipsis")
            grid.add_row(Text(line.label, style="dim"), text)
            continue
        for number, part in enumerate(wrapped(line.text, room)):
            grid.add_row(Text("" if number else line.label, style="dim"), Text(part))
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
    whole = (run.span, f"{budget.shown} {budget.unit.name}")
    median = _median(budget)
    if width < BARS_FROM:
        grid.add_row(Text(whole[0], style="bold"), Text(whole[1], style="bold"))
        if median:
            grid.add_row(Text("median", "dim"), Text(median, "dim"))
        for line in budget.visible:
            grid.add_row(*_cells(line, budget.unit.name)[:2])
        return grid
    of = f"mean {run.windows}" if many else ""
    grid.add_row(
        Text(whole[0], style="bold"),
        Text(whole[1], style="bold"),
        Text("100.0 %", style="dim"),
        Text(of, "dim"),
    )
    if median:
        grid.add_row(Text("median", "dim"), Text(median, "dim"))
    labels = max(len(whole[0]), *(len(line.label) + 2 * line.depth + 2 for line in budget.visible))
    room = max(8, width - labels - len(whole[1]) - 14)
    for line in budget.visible:
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


def remedies(finding: Finding, paths: str) -> list[str]:
    """The commands that show what to change about a finding, the best first."""
    return [f"lostflops remedy {name} {paths}" for name in finding.remedies or ()]


def whatif(finding: Finding, paths: str) -> str:
    """The command that predicts what removing a finding would gain, where there is one for these paths."""
    refused = finding.predicted is not None and finding.predicted.refused
    if not finding.edit or refused or " --" in paths or len(shlex.split(paths)) != 1:
        return ""
    return f"lostflops whatif {paths} {finding.edit}"


def gain(finding: Finding, budget: Budget | None, whole: bool = False) -> str:
    """What acting on a finding could save, as the page says it: how sure, size, and share of the step.

    Of a `whole` recording, where no steps are known, it is no gain per step.
    """
    per = "" if whole else " per step"
    known = finding.predicted
    said = list[str]()
    if known is not None and known.either_way:
        least, most = milliseconds(-known.low_ns), milliseconds(known.high_ns)
        said.append(f"a replay cannot tell: between a loss of {least} and a gain of {most}")
    elif known is not None and not known.refused:
        said.append(f"predicted {_predicted(known, budget, per)}")
    if finding.gain != "unknown":
        said.append(f"{finding.gain} {_amount(finding.ns_per_step, budget, per)}")
    if known is not None and known.of_edit:
        said.append(f"not predicted: {one_line(known.refused)}")
    return "; ".join(said) or "unknown"


def _amount(ns: int, budget: Budget | None, per: str) -> str:
    share = "" if budget is None else f" ({percent(ns * budget.num_windows, budget.ns)})"
    return f"{milliseconds(ns)}{per}{share}"


def _predicted(gain: PredictedGain, budget: Budget | None, per: str) -> str:
    """A predicted gain with what it lies between; a loss is told as such."""
    least, most = _told(gain.low_ns), _told(gain.high_ns)
    if abs(gain.ns) < NOTHING:
        return f"no gain (between {least} and {most})" if least != most else "no gain"
    said = _amount(gain.ns, budget, per) if gain.ns > 0 else f"a loss of {_amount(-gain.ns, budget, per)}"
    return f"{said}, between {least} and {most}"


def _told(ns: int) -> str:
    if abs(ns) < NOTHING:
        return "nothing"
    return milliseconds(ns) if ns > 0 else f"a loss of {milliseconds(-ns)}"


def about_gains(findings: Sequence[Finding]) -> str:
    """What holds for the gains of all findings: what the replay misses, or why it predicts nothing."""
    told, asked = list[str](), [f.predicted for f in findings if f.predicted is not None]
    answered = [p for p in asked if not p.refused and not p.either_way]
    if answered:
        told.append(
            f"Predicted by replay, which is {percent(answered[0].error, 1)} off on the unchanged job."
        )
    if reasons := dict.fromkeys(one_line(p.refused) for p in asked if p.refused and not p.of_edit):
        told.append(f"No gain is predicted: {'; '.join(reasons)}.")
    if len([f for f in findings if f.ns_per_step]) > 1:
        told.append("Gains of several findings do not add up.")
    return " ".join(told)


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
