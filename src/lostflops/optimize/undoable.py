"""What is in force from its making until `undo()`, or the end of a `with` block."""

from __future__ import annotations

from typing import Self


class Undoable:
    def undo(self) -> None:
        """The model as it was. Once is enough."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()
