"""A remedy for a job, as text and as JSON: what to type, how safe it is, and how to check that it worked."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from lostflops import causes, frameworks
from lostflops.remedies import FRAMEWORKS, REMEDIES, THEMES, UNKNOWN, Change, Remedy, Setting, Snippet, named
from lostflops.store.trace import Trace

from .words.safe import as_command, one_line

WIDEST = 100
LABEL = 11  # columns before the text of a line
SHARDING = {"": "", "ddp": " with DDP", "fsdp": " with FSDP"}
WORD = re.compile(r"`[^`]*`\S*|\S+")
COLORS = {"+": "green", "-": "red"}


@dataclass(frozen=True)
class RemedyForJob:
    """A remedy, and the job that is to be changed: None where any may be meant.

    `paths` is what to type to ask about the job's recording; empty where there is none.
    """

    remedy: Remedy
    job: Setting | None = None
    paths: str = ""

    @classmethod
    def asked(
        cls, name: str, framework: str = "", trace: Trace | None = None, paths: str = ""
    ) -> RemedyForJob:
        """The remedy of that name for a framework, or for that of a recording, as its versions spell it.

        Raises NoSuchRemedy with the names that are near.
        """
        found, job = named(name), None if trace is None else frameworks.setting(trace)
        return cls(found, of_framework(job, framework), paths)

    @property
    def changes(self) -> tuple[tuple[str, Change], ...]:
        """What to change, by the key of the framework: one where the job is known, else all."""
        return tuple(self._changes())

    def _changes(self) -> Iterator[tuple[str, Change]]:
        has = self.remedy.changes
        if self.job is None:
            order = [*reversed([*FRAMEWORKS])]
            keys = sorted(has, key=lambda key: (order.index(key.partition("/")[0]), key))
            yield from ((key, has[key]) for key in keys)
            return
        own = self.job.framework if self.job.is_own(self.remedy) else "pytorch"
        variants = (
            (f"{own}/{self.job.sharding}",) if self.job.sharding else (own, f"{own}/ddp", f"{own}/fsdp")
        )
        chosen = [key for key in variants if key in has] or [own]
        if self.job.deepspeed and self.remedy.is_in_deepspeed_json:
            chosen.append("deepspeed")
        yield from ((key, has[key]) for key in chosen)

    @property
    def is_on(self) -> bool | None:
        """Whether the recording shows that the job has it on; None where that is not known."""
        if self.job is None or not self.remedy.on or not self.paths:
            return None
        return self.remedy.on in self.job.on

    @property
    def is_possible(self) -> bool:
        """Whether the job's GPU can do it, as far as that is known."""
        return self.job is None or self.job.units is None or self.job.allows(self.remedy)

    def to_json(self) -> dict[str, Any]:
        """All of it, as data."""
        remedy, job = self.remedy, self.job
        return {
            **summary(remedy),
            "framework": None if job is None else job.framework,
            "told_by": "" if job is None else job.told_by,
            "is_on": self.is_on,
            "is_possible": self.is_possible,
            "changes": [
                {
                    "framework": key.partition("/")[0],
                    "sharding": key.partition("/")[2],
                    "snippets": [
                        {
                            "language": s.language,
                            "title": s.title,
                            "text": s.text,
                            "since": s.since,
                            "until": s.until,
                        }
                        for s in self._spelled(change)
                    ],
                    "instead": change.instead,
                    "note": change.note,
                }
                for key, change in self.changes
            ],
            "when": remedy.when,
            "why_safe": remedy.safe,
            "costs": remedy.costs,
            "limits": remedy.limits,
            "undo": remedy.undo,
            "seen": remedy.seen,
            "recipe": remedy.recipe,
            "edit": remedy.edit,
            "helper": f"lostflops.optimize.{remedy.helper}" if remedy.helper else "",
        }

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=WIDEST))
        return text.getvalue()

    def show(self, console: Console) -> None:
        """Print it. Code and commands stand whole on their lines, so that they can be copied."""
        width = min(console.width, WIDEST)
        for line in self._lines(width):
            console.print(line, soft_wrap=True, highlight=False)

    def _lines(self, width: int) -> Iterator[Text]:
        yield Text(self.remedy.name, style="bold")
        yield from map(Text, wrapped(self.remedy.does, width))
        for line in self._about_the_job():
            yield Text()
            yield from map(Text, wrapped(line, width))
        for key, change in self.changes:
            yield Text()
            yield from self._change(key, change, width)
        yield Text()
        for label, said in self._facts():
            if not said:
                continue
            for i, line in enumerate([said.strip("`")] if is_command(said) else wrapped(said, width - LABEL)):
                yield Text.assemble(((label if not i else "").ljust(LABEL), "dim"), one_line(line))

    def _about_the_job(self) -> Iterator[str]:
        job = self.job
        if job is None or not self.paths:
            return
        if job.framework == UNKNOWN:
            yield (
                f"Framework: unknown; {job.told_by or 'nothing in the recording tells it'}. This is for "
                "plain PyTorch; `--for` names another framework."
            )
        else:
            yield f"Framework: {FRAMEWORKS[job.framework]}; {job.told_by}."
        if self.is_on:
            yield "The recording shows that it is on already."
        if not self.is_possible:
            yield "The GPU of this recording cannot do it."

    def _change(self, key: str, change: Change, width: int) -> Iterator[Text]:
        framework, _, sharding = key.partition("/")
        yield Text(f"{FRAMEWORKS[framework]}{SHARDING[sharding]}", style="bold")
        if self._is_borrowed(framework):
            own = FRAMEWORKS[self.job.framework] if self.job else ""
            for line in wrapped(f"{own} has no switch of its own for it: change your own code.", width - 2):
                yield Text(f"  {line}")
        if change.instead:
            yield from (
                Text(f"  {line}") for line in wrapped(f"Nothing to change. {change.instead}", width - 2)
            )
        for snippet in self._spelled(change):
            if snippet.heading:
                yield Text(f"  {snippet.heading}:", style="dim")
            for line in snippet.text.splitlines():
                color = COLORS.get(line[:1], "") if snippet.is_diff else ""
                yield Text(f"    {line}".rstrip(), style=color)
        if change.note:
            yield from (Text(f"  {line}") for line in wrapped(change.note, width - 2))

    def _is_borrowed(self, framework: str) -> bool:
        """Whether a change is plain PyTorch's, for a job that another framework drives."""
        return (
            framework == "pytorch" and self.job is not None and self.job.framework not in ("pytorch", UNKNOWN)
        )

    def _spelled(self, change: Change) -> Sequence[Snippet]:
        """The snippets that the job's versions take, as far as those are known."""
        if self.job is None:
            return change.snippets
        fitting = self.job.fitting
        taken = [snippet for snippet in change.snippets if snippet.taken_by(self.job.versions)]
        return [replace(s, text=said) for s in taken if (said := fitting(s.text))]

    def _facts(self) -> Iterator[tuple[str, str]]:
        remedy = self.remedy
        yield "findings", ", ".join(causes.asking_for(remedy.name))
        yield "accounts", ", ".join(causes.shortened_by(remedy.name))
        yield "when", remedy.when
        yield "safety", f"{remedy.safety}. {remedy.safe}".strip()
        yield "costs", remedy.costs
        yield "limits", remedy.limits
        yield "undo", remedy.undo
        yield "check", remedy.seen
        run = self.paths or "RUN"
        yield "show", f"`lostflops recipe {as_command(remedy.recipe)} {run}`"
        if remedy.edit and " --" not in run:
            yield "what if", f"`lostflops whatif {run} {remedy.edit}`"
        if remedy.helper:
            yield "helper", f"`lostflops.optimize.{remedy.helper}`"


def of_framework(job: Setting | None, framework: str) -> Setting | None:
    """The job as one of that framework, where one is given; of a recording its versions stay."""
    if not framework:
        return job
    if job is None:
        return Setting(framework, told_by="it was asked for")
    same = job.framework == framework
    return Setting(
        framework,
        deepspeed=job.deepspeed and same,
        sharding=job.sharding,
        on=job.on,
        units=job.units,
        fitting=job.fitting,
        replays_graphs=job.replays_graphs,
        versions=job.versions,
        told_by="it was asked for",
    )


def summary(remedy: Remedy) -> dict[str, Any]:
    """What a list of remedies holds of one."""
    return {
        "name": remedy.name,
        "does": remedy.does,
        "theme": next(theme for theme, names in THEMES.items() if remedy.name in names),
        "findings": list(causes.asking_for(remedy.name)),
        "accounts": list(causes.shortened_by(remedy.name)),
        "safety": remedy.safety,
    }


def listed(job: Setting | None) -> Mapping[str, Sequence[Remedy]]:
    """The remedies by theme; for a job those that its framework has something to change for."""
    by_theme = {
        theme: [REMEDIES[name] for name in names if job is None or job.change(REMEDIES[name]).is_there]
        for theme, names in THEMES.items()
    }
    return {theme: there for theme, there in by_theme.items() if there}


def is_command(text: str) -> bool:
    return text.startswith("`lostflops ") and text.count("`") == 2 and text.endswith("`")


def wrapped(text: str, width: int) -> Iterator[str]:
    """The words of `text` in lines of `width` columns; what stands between backticks is one word."""
    line = ""
    for word in WORD.findall(one_line(text)):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    if line:
        yield line
