"""An exercise in the terminal: the question, the pages, and the expected beside the observed."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from lostflops.errors import BadOption, as_argument
from lostflops.lab.exercises.exercise import Exercise
from lostflops.lab.exercises.running import SIDES, Ran
from lostflops.report import terminal

GPUS = Path("/proc/driver/nvidia/gpus")


def device(exercise: Exercise, asked: str | None) -> str:
    """Where it trains. Raises BadOption for a device that it cannot use here."""
    try:
        gpus = len(list(GPUS.iterdir()))
    except OSError:
        gpus = 0
    only_here = exercise.script != "train"
    if asked == "cuda" and (only_here or gpus < exercise.ranks):
        if not exercise.recorded:
            why = "is about the host"
        elif only_here:
            why = "sleeps in its stages, which a GPU would not see"
        else:
            why = f"needs {exercise.ranks} GPU{'s' if exercise.ranks > 1 else ''}; this machine has {gpus}"
        raise BadOption(f"Exercise {exercise.name} {why}.", "leave out --device: it runs on the processor.")
    return asked or ("cuda" if gpus >= exercise.ranks and not only_here and exercise.sides else "cpu")


def introduction(exercise: Exercise, device: str, console: Console) -> None:
    """What is asked, and what must be seen."""
    console.print(Text(f"{exercise.name}: {exercise.title}", style="bold"))
    console.print(Text(exercise.question))
    if exercise.sides is not None:
        ranks = f"{exercise.ranks} rank{'s' if exercise.ranks > 1 else ''}"
        how = f"{ranks} on {device}, {exercise.steps} steps, of which 5 are recorded in full"
        console.print(Text(f"\n{how if exercise.recorded else 'it measures itself, twice'}:"))
        for label, side in zip(("first", "then"), exercise.sides, strict=True):
            console.print(Text(f"  {label:6}{side.what}"))
    console.print(Text("\nexpected"))
    for line in exercise.expected:
        console.print(Text(f"  {line}"))
    console.print(Text(f"look at\n  {exercise.see}\n"))


def pages(ran: Ran, console: Console) -> None:
    """The first page of each side, and the fix between them."""
    if not ran.exercise.recorded:
        console.print(Text(f"\nfix: {ran.exercise.fix}", style="bold"))
        return
    for number, seen in enumerate(ran.observed):
        if number:
            console.print(Text(f"\nfix: {ran.exercise.fix}", style="bold"))
        assert ran.exercise.sides is not None
        console.print(Text(f"\n── {SIDES[number]}: {ran.exercise.sides[number].what}", style="bold"))
        terminal.show(seen.page, console, paths=as_argument(seen.run))


def compared(exercise: Exercise, console: Console) -> None:
    """What to look at where both sides stand beside each other."""
    assert exercise.sides is not None
    console.print(Text(f"{exercise.name}: {exercise.title}", style="bold"))
    for name, side in zip(SIDES, exercise.sides, strict=True):
        console.print(Text(f"  {name:8}{side.what}"))
    console.print(Text(f"fix: {exercise.fix}"))
    console.print(Text(f"look at {exercise.see}\n"))


def checks(ran: Ran, console: Console) -> None:
    """The expected beside the observed, and whether it is so."""
    console.print(Text(f"\n── {ran.exercise.name}: expected and observed", style="bold"))
    for check in ran.checks:
        word, style = ("pass", "green") if check.passed else ("FAIL", "bold red")
        console.print(Text.assemble((f"{word}  ", style), check.expected))
        console.print(Text(f"      {check.observed}", style="dim"))
    recorded = ran.observed if ran.exercise.recorded else ()
    busy = next((seen.core_wait for seen in recorded if seen.core_wait), "")
    if busy:
        console.print(Text(f"\nThis machine was busy; times are not to be trusted: {busy}", style="yellow"))
    good = sum(check.passed for check in ran.checks)
    console.print(Text(f"\n{good} of {len(ran.checks)} observations are as expected", style="bold"))
    console.print(Text(f"all of it lies in {as_argument(ran.folder)}"))
