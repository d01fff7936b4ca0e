"""Small wrong versions of a module: one comparison, operator, constant, condition or call changed in each.

A test suite that passes with one of these installed would let the same slip pass in a real change.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# Calls whose result may stand without them, and pairs of calls that are mistaken for each other.
DROPPED = {"filter", "fill_null", "sort", "abs", "unique", "round", "ceil", "over", "shift", "drop_nulls"}
MISTAKEN = {"min": "max", "max": "min", "first": "last", "last": "first", "any": "all", "all": "any"}
MISTAKEN |= {"cum_sum": "cum_max", "forward_fill": "backward_fill", "floor": "ceil"}
COLUMNS = {"start": "end", "end": "start"}
# Arguments that say how and not what: the same answer with the default.
SAME_ANSWER = {("how", "inner"), ("strategy", "backward"), ("closed", "both"), ("maxsize", None)}
UNTOLD = {"maxsize", "copy", "frozen", "slots", "kw_only", "return_dtype", "check_sortedness", "strict"}


@dataclass(frozen=True)
class Change:
    """One place of a syntax tree and what stands there instead."""

    line: int
    holder: ast.AST
    field: str
    index: int | None
    new: Any

    def _swap(self, new: Any) -> Any:
        place = getattr(self.holder, self.field)
        if self.index is None:
            setattr(self.holder, self.field, new)
            return place
        old, place[self.index] = place[self.index], new
        return old

    def apply(self) -> None:
        """Make the change in the tree that it was found in."""
        self._swap(self.new)

    @property
    def words(self) -> str:
        """Before and after, in Python."""
        old = self._swap(self.new)
        self._swap(old)
        whole = isinstance(old, list)
        before = ast.unparse(self.holder if whole else old)
        if whole:
            self._swap(self.new)
            after = ast.unparse(self.holder)
            self._swap(old)
        else:
            after = ast.unparse(self.new)
        return _differing(before, after)


def _differing(before: str, after: str) -> str:
    """Both texts, cut to where they differ and a little around it."""
    shorter = min(len(before), len(after))
    first = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    start = max(0, first - 25)
    cut = [" ".join(text[start : first + 30].split()) for text in (before, after)]
    return " -> ".join(cut)


def changes(tree: ast.Module) -> list[Change]:
    """Every change of `tree` that is worth a test, in the order of its lines."""
    return sorted(_within(tree), key=lambda change: change.line)


def _within(holder: ast.AST) -> Iterator[Change]:
    for field, value in ast.iter_fields(holder):
        if _says_nothing(holder, field):
            continue
        yield from _without_one(holder, field, value)
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.expr | ast.stmt):
                for new in _versions(node):
                    yield Change(node.lineno, holder, field, index, new)
            if isinstance(node, ast.AST):
                yield from _within(node)


def _says_nothing(holder: ast.AST, field: str) -> bool:
    """Types, docstrings, messages and arguments that change no answer."""
    return (
        field in ("annotation", "returns", "decorator_list", "type_params")
        or isinstance(holder, ast.Raise | ast.Assert | ast.JoinedStr | ast.FormattedValue)
        or (isinstance(holder, ast.keyword) and holder.arg in UNTOLD)
        or (isinstance(holder, ast.If) and "TYPE_CHECKING" in ast.unparse(holder.test))
    )


def _versions(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(value * 1.25 or 1.0)
        case ast.Constant(value=str() as value) if value in COLUMNS:
            yield ast.Constant(COLUMNS[value])
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                new = copy.deepcopy(node)
                new.ops[number] = OPPOSITES[type(operator)]()  # type: ignore[assignment]
                yield new
        case ast.BinOp() | ast.BoolOp() if type(node.op) in OPPOSITES and not _is_type(node):
            new = copy.deepcopy(node)
            new.op = OPPOSITES[type(node.op)]()  # type: ignore[assignment]
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            yield operand
        case ast.If() | ast.IfExp() | ast.While():
            new = copy.deepcopy(node)
            new.test = ast.UnaryOp(ast.Not(), node.test)
            yield new
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield ast.Return(ast.Constant(None))
        case ast.Call(func=ast.Attribute(value=receiver, attr=name)):
            if name in DROPPED:
                yield receiver
            if name in MISTAKEN:
                new = copy.deepcopy(node)
                new.func.attr = MISTAKEN[name]  # type: ignore[attr-defined]
                yield new
        case ast.Call(func=ast.Name(id=name)) if name in ("min", "max", "any", "all"):
            new = copy.deepcopy(node)
            new.func.id = MISTAKEN[name]  # type: ignore[attr-defined]
            yield new
        case _:
            pass


def _without_one(holder: ast.AST, field: str, value: Any) -> Iterator[Change]:
    """The list without one of its elements: told arguments, and elements of what a module knows."""
    if isinstance(holder, ast.Call) and field == "keywords":
        for number, word in enumerate(value):
            if _may_be_left_out(word):
                yield Change(word.lineno, holder, field, None, value[:number] + value[number + 1 :])
    if isinstance(holder, ast.Tuple | ast.List | ast.Set) and field == "elts" and len(value) > 2:
        for number, element in enumerate(value):
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                yield Change(element.lineno, holder, field, None, value[:number] + value[number + 1 :])


def _may_be_left_out(word: ast.keyword) -> bool:
    return (
        word.arg is not None
        and word.arg not in UNTOLD
        and isinstance(word.value, ast.Constant)
        and (word.arg, word.value.value) not in SAME_ANSWER
    )


def _is_type(node: ast.BinOp | ast.BoolOp) -> bool:
    """`int | None` and the like, at the right of an assignment."""
    return isinstance(node.op, ast.BitOr) and "None" in ast.unparse(node)


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
