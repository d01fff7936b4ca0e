"""The values of tables of names and values, cleaned by what the names mean in their format."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lostflops.ingest.private import Settings
from lostflops.privacy.cleaner import ENVIRONMENT, USERS, Cleaner
from lostflops.privacy.secrets import without_secrets

_PLAIN = {"", "true", "false", "none", "0", "1"}
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBERS = re.compile(r"[\w.,:+-]{0,64}")


def learn(pairs: Sequence[tuple[str, str]], settings: Settings, cleaner: Cleaner) -> None:
    """Note the machines that a table names."""
    for name, value in pairs:
        if settings.machine.fullmatch(name):
            cleaner.host(value.encode())


def values(pairs: Sequence[tuple[str, str]], settings: Settings, cleaner: Cleaner) -> list[str]:
    """The clean values of a table, in order."""
    words = [value for name, value in pairs if settings.word.fullmatch(name)]
    kept = iter(without_secrets(words))
    return [
        _value(name, value, next(kept) if settings.word.fullmatch(name) else "", settings, cleaner)
        for name, value in pairs
    ]


def _value(name: str, value: str, word: str, settings: Settings, cleaner: Cleaner) -> str:
    if not value:
        return value
    raw = value.encode(errors="surrogateescape")
    if settings.machine.fullmatch(name):
        return _text(cleaner.text(b'"host_name": "%s"' % raw)[14:-1])
    if settings.person.fullmatch(name):
        return _text(cleaner.removed(USERS, raw))
    if settings.word.fullmatch(name):
        if word != value:
            cleaner.removed("secrets", raw)
        return _text(cleaner.text(word.encode(errors="surrogateescape")))
    if settings.path.fullmatch(name):
        return _text(cleaner.text(raw))
    if value.lower() in _PLAIN or settings.stays.fullmatch(name):
        return _text(cleaner.text(raw))
    variable = _VARIABLE.fullmatch(value)
    called = variable[1] if variable else name
    if settings.variable.fullmatch(called) and _NUMBERS.fullmatch(variable[2] if variable else value):
        return _text(cleaner.text(raw))
    if variable:
        return f"{called}={_text(cleaner.removed(ENVIRONMENT, variable[2].encode(errors='surrogateescape')))}"
    return _text(cleaner.removed(ENVIRONMENT, raw))


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
