"""A proof in a terminal: the verdict, then what it rests on, then what else changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lostflops.errors import as_argument, shown
from lostflops.experiment.proof.proven import Proven

from . import sentences

WIDEST = 110


def show(found: Proven, console: Console) -> None:
    """Print the proof."""
    console.print(Text(sentences.headline(found), style="bold"), highlight=False)
    for line in _lines(found):
        console.print(Padding(Text(line), (0, 0, 0, 2)), highlight=False)
    _several(console, "What differs", sentences.differences(found))
    _several(console, "Note", notes(found))


def _lines(found: Proven) -> Iterator[str]:
    middle = (sentences.step(found), sentences.basis(found), sentences.by_steps(found))
    yield from filter(None, middle)
    yield from sentences.resolution(found)
    if said := sentences.prediction(found):
        yield said
    if found.values is not None:
        yield sentences.loss(found.loss)
    yield from map(sentences.memory, found.memory)


def notes(found: Proven) -> Iterator[str]:
    """What a reader should know before trusting it."""
    if found.stopped:
        yield found.stopped
    for note in (*found.notes, *(found.values.notes if found.values else ())):
        yield f"{note[:1].upper()}{note[1:]}" + ("" if note.endswith((".", ":")) else ".")
    if found.folder is not None:
        again = f"lostflops prove {as_argument(found.folder)}"
        yield f"Results: {shown(found.folder)}; `{again}` reads them again."


def _several(console: Console, heading: str, lines: Iterable[str]) -> None:
    told = list(lines)
    if told:
        console.print()
        console.print(Text(heading), highlight=False)
    for line in told:
        console.print(Padding(Text(line), (0, 0, 0, 2)), highlight=False)
