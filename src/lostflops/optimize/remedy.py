"""What all remedies have in common: `apply`, `undo` and `report`, by call or as a `with` block.

    with optimize.checkpoint(model) as remedy:      remedy = optimize.checkpoint(model)
        train(model)                                train(model)
    print(remedy.report())                          remedy.undo()
                                                    json.dump(remedy.report().to_json(), file)

A remedy is one file: a class of these three, and the function that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Self, cast

from lostflops.optimize.refused import Refused

SCHEMA = 1  # of all reports


class Report:
    """What a remedy did: `str()` for people, `to_json()` for programs.

    A report is a frozen dataclass. `document` is what its JSON says that it is; names in `derived` are
    properties that are told beside the fields.
    """

    document: ClassVar[str]
    derived: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Every figure with its unit in its name, and what is derived from them, such as rates."""
        return {**plain(self), "schema": SCHEMA, "kind": self.document}


@dataclass(frozen=True)
class TextReport(Report):
    """A report that is a few lines of text, and the figures in them."""

    remedy: str
    lines: tuple[str, ...]
    figures: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**plain(self.figures), "schema": SCHEMA, "kind": f"{self.remedy} report"}

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as dictionaries and lists."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        more = value.derived if isinstance(value, Report) else ()
        return found | {name: plain(getattr(value, name)) for name in more}
    if isinstance(value, dict):
        some = cast("dict[Any, Any]", value)
        return {str(key): plain(one) for key, one in some.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("list[Any]", value)]
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


class AppliedRemedy:
    """In force from its making until `undo()`, or the end of a `with` block, unless it says otherwise.

    After `undo()` the model computes as it would without, to the bit.
    """

    _undone = False

    def apply(self) -> Self:
        """In force: it is so as it is made. What was undone is made anew, as the model may have changed."""
        if self._undone:
            raise Refused("this remedy has been undone", "make it again, with the function that made it")
        return self

    def undo(self) -> None:
        """The model as it was. Once is enough. A report can still be had."""
        if not self._undone:
            self._undone = True
            self._take_back()

    def _take_back(self) -> None:
        raise NotImplementedError

    def report(self) -> Report:
        """What it did so far."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.apply()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.undo()
