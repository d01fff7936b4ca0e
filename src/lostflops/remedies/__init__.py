"""What to change, in the words of the framework that the job uses.

One file per remedy, in a folder of its theme; a finding names those that it asks for, where it is declared.
Data only: what a recording shows of a job is found by `lostflops.frameworks`.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from lostflops.errors import NoSuchRemedy

from .remedy import FRAMEWORKS, UNKNOWN, Change, Remedy
from .setting import Setting
from .snippet import Snippet

__all__ = [
    "FRAMEWORKS",
    "REMEDIES",
    "THEMES",
    "UNKNOWN",
    "Change",
    "Remedy",
    "Setting",
    "Snippet",
    "advice",
    "left",
    "named",
    "near",
]

MOST = 2  # changes that a finding tells
MOST_NEAR = 4


def _found() -> Iterator[tuple[str, Remedy]]:
    folders = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__) if m.ispkg]
    for folder in sorted(folders, key=lambda f: (f.ORDER, f.__name__)):
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            declared = getattr(import_module(module.name), "REMEDY", None)
            if isinstance(declared, Remedy):
                yield (folder.__doc__ or "").strip().rstrip("."), declared


_BY_THEME = tuple(_found())
REMEDIES: Mapping[str, Remedy] = {remedy.name: remedy for _, remedy in _BY_THEME}
# The names of the remedies by what they are about.
THEMES: Mapping[str, tuple[str, ...]] = {
    theme: tuple(remedy.name for its, remedy in _BY_THEME if its == theme)
    for theme in dict.fromkeys(theme for theme, _ in _BY_THEME)
}


def named(name: str) -> Remedy:
    """The remedy of that name, however its words are joined. Raises NoSuchRemedy with those that are near."""
    found = REMEDIES.get(name.strip().lower().replace("_", "-").replace(" ", "-"))
    if found is None:
        raise NoSuchRemedy(name, near(name))
    return found


def near(name: str) -> tuple[str, ...]:
    """The remedies that may be meant: by a name like theirs, a word of it, or what is typed for them."""
    word = name.strip().lower().replace("_", "-")
    alike = get_close_matches(word, list(REMEDIES), n=MOST_NEAR, cutoff=0.6)
    parts = {part for part in re.split(r"[^a-z0-9]+", word) if len(part) > 2}
    shares = [known for known in REMEDIES if parts & set(known.split("-"))]
    typed = [known for known, remedy in REMEDIES.items() if len(word) > 2 and _types(remedy, name.strip())]
    return tuple(dict.fromkeys((*alike, *shares, *typed)))[:MOST_NEAR]


def _types(remedy: Remedy, word: str) -> bool:
    snippets = (snippet for change in remedy.changes.values() for snippet in change.snippets)
    return any(word.lower() in snippet.text.lower() for snippet in snippets)


def advice(asked: Sequence[str], job: Setting, otherwise: str) -> str:
    """What to do in this job, of the remedies asked for, the best first; `otherwise` where none is left."""
    said = [text for name in asked if (text := job.says(REMEDIES[name]))][:MOST]
    if said and job.deepspeed:
        said += _deepspeed(asked, job)
    return " ".join(said) or otherwise


def left(asked: Sequence[str], job: Setting) -> tuple[str, ...]:
    """Which of the remedies asked for this job could still make: those that a finding tells, the best first,
    and then the others."""
    there = [name for name in dict.fromkeys(asked) if job.is_left(REMEDIES[name])]
    return tuple(sorted(there, key=lambda name: not job.says(REMEDIES[name])))


def _deepspeed(asked: Sequence[str], job: Setting) -> list[str]:
    """DeepSpeed's own part of the change, for a job that another framework drives."""
    for name in asked:
        remedy = REMEDIES[name]
        if remedy.is_in_deepspeed_json and job.allows(remedy):
            text = remedy.changes["deepspeed"].says
            return [f"In DeepSpeed's JSON: {text[0].lower()}{text[1:]}"]
    return []


class _Remedies(ModuleType):
    """This package, which is also `lostflops.remedies()`: one name cannot be a function and a package."""

    def __call__(self) -> Mapping[str, Remedy]:
        """Every remedy by its name, in the order of themes."""
        return REMEDIES


sys.modules[__name__].__class__ = _Remedies
