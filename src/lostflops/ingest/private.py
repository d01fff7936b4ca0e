"""What a format says of people and machines in its files, beside its reader: `scrub` and `inspect` ask it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# How a file is stored. Text of each of these can be cleaned; an export is a folder with a file of columns for
# each table.
Storage = Literal["text", "database", "columns", "export"]

NEVER = re.compile(r"(?!)")


@dataclass(frozen=True, eq=False)
class Settings:
    """Tables of names and values, which may hold the job's environment, its command line and its output.

    A name that matches none of these patterns loses its value. All but `variable` are of whole names.
    """

    tables: tuple[str, ...] = ()  # with columns `name` and `value`
    # Columns of other tables with ids of texts that are whole files: what was printed and captured.
    contents: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    machine: re.Pattern[str] = NEVER
    person: re.Pattern[str] = NEVER
    word: re.Pattern[str] = NEVER  # of a command line
    path: re.Pattern[str] = NEVER
    stays: re.Pattern[str] = NEVER  # the value tells neither who nor where
    variable: re.Pattern[str] = NEVER  # of the environment, whose value stays if it is a number


NO_SETTINGS = Settings()


@dataclass(frozen=True, eq=False)
class Private:
    """How the files of a format can be looked through. Endings are of a name in small letters.

    A file whose ending is in neither is text, a database or columns if it looks like that. A format without
    this is left out of what `scrub` writes, and it says so.
    """

    stored: Mapping[str, Storage] = field(default_factory=dict[str, Storage])  # by ending
    closed: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # by ending: why nothing can look into it
    names_machine: re.Pattern[str] | None = None  # of a file's name: the first group is a machine
    settings: Settings = NO_SETTINGS
