"""The formats, found by being here: a module says what its files end in and writes them."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lostflops.errors import BadOption, shown, suggestion

if TYPE_CHECKING:
    from lostflops.export.asked import Exported, ExportRequest


class ExportFormat(Protocol):
    """What a module of this package offers."""

    __doc__: str | None

    @property
    def ENDINGS(self) -> tuple[str, ...]: ...  # noqa: N802

    @property
    def OPENED_BY(self) -> str: ...  # noqa: N802

    @property
    def TIMELINE(self) -> bool:  # noqa: N802
        """Whether it shows findings and the ledger beside what was recorded."""
        ...

    @property
    def TABLE(self) -> bool:  # noqa: N802
        """Whether it holds one table, which is to be named."""
        ...

    @property
    def STACKS(self) -> bool:  # noqa: N802
        """Whether it weights stacks, by one of several times."""
        ...

    def write(self, asked: ExportRequest, output: Path) -> Exported: ...


# Those that a timeline's reader is most likely to want come first.
ORDER = ("perfetto", "chrome", "paraver", "speedscope", "folded", "parquet", "arrow", "csv", "otlp")


def names() -> list[str]:
    """All formats, without importing them."""
    found = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def named(name: str) -> ExportFormat:
    return import_module(f"{__name__}.{name}")  # pyright: ignore[reportReturnType]


def known(name: str) -> ExportFormat:
    """The format that a user named. Raises BadOption."""
    if name not in names():
        listed = ", ".join(names())
        raise BadOption(
            f"There is no format '{shown(name)}'.{suggestion(name, names())}", f"choose from {listed}."
        )
    return named(name)


def of_ending(name: str) -> str | None:
    """The format whose files end like that."""
    known = ((ending, form) for form in names() for ending in named(form).ENDINGS)
    fitting = [(len(ending), form) for ending, form in known if name.lower().endswith(ending)]
    return max(fitting)[1] if fitting else None
