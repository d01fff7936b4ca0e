"""Reads the sources of a job on workers, one task for each: what `ingest.sources` does on one machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from uuid import uuid4

from lostflops.errors import LostflopsError, NotATrace
from lostflops.ingest.formats import Reader
from lostflops.ingest.sources import Outcome

from .tasks import SeenFile, Unread, parts_of, read
from .workers import Workers

Progress = Callable[[str, float], None]


def read_all(
    workers: Workers,
    formats: Mapping[Path, Reader],
    folder: Path,
    *,
    salvage: bool,
    optional: Collection[Path] = (),
    progress: Progress | None = None,
) -> list[Outcome]:
    """The parts of each source, in order, written below `folder`, which the workers must see.

    The first source's error is raised, but that of an optional one that is no trace takes its place. Raises
    ClusterLost for what is wrong with the workers; these tell by themselves how far they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "read-by-workers"
    mark.write_text(uuid4().hex)
    place, seen = str(folder.absolute()), SeenFile.of(mark)
    unread = {
        source: Unread(SeenFile.of(source), reader.name, place, seen, salvage)
        for source, reader in formats.items()
    }
    # The largest first, so that none is left for the end.
    largest = sorted(unread, key=lambda source: -unread[source].source.bytes)
    sent = {source: workers.send(read, unread[source]) for source in largest}
    outcomes: list[Outcome] = []
    failed: LostflopsError | None = None
    for source, said in zip(formats, workers.results([sent[s] for s in formats], "reading"), strict=True):
        try:
            outcomes.append(parts_of(said))
        except NotATrace as error:
            if source in optional:
                outcomes.append(error)
            else:
                failed = failed or error
        except LostflopsError as error:
            failed = failed or error
    if failed:
        raise failed
    return outcomes
