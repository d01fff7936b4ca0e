"""Which functions a recording marks by name: the JSON file of `lostflops record --annotate`.

The format is the one that Nsight Systems reads for its Python functions:

    [{"domain": "model", "color": "0x008000", "module": "torch.nn.functional",
      "functions": ["cross_entropy", {"function": "relu", "color": "red"}]}]

What an entry says holds for its functions; a function that is an object may say otherwise for itself. A key
that nobody knows is passed over, one that looks like a slip of the pen is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from lostflops.capture.record.injected.lostflops_recorder.marks import mark
from lostflops.errors import BadAnnotations, Unreadable, shown, suggestion

COMMON = ("module", "domain", "color", "category")
KEYS = (*COMMON, "functions")
OWN_KEYS = (*COMMON, "function")
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# What the marks themselves are made with: a mark in them would call itself.
FORBIDDEN = re.compile(
    r"(torch\.(compiler|profiler|autograd\.profiler|autograd\.profiler_util|cuda\.nvtx|_ops|_C|_dynamo)"
    r"|nvtx|builtins|sys|os|functools|importlib|threading|lostflops|lostflops_recorder)(\.|$)"
)
LARGEST = 10 << 20  # bytes
MOST = 10_000

Annotations = tuple[Mapping[str, Any], ...]


def read(path: Path) -> Annotations:
    """The functions that the file names, each with what its entry says.

    Raises Unreadable or BadAnnotations.
    """
    try:
        raw = path.read_bytes() if path.stat().st_size <= LARGEST else None
    except OSError as error:
        raise Unreadable(path, error) from error
    if raw is None:
        raise BadAnnotations(path, "", f"it is larger than {LARGEST >> 20} MB.")
    try:
        entries: Any = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadAnnotations(path, "", f"it is not JSON: {shown(str(error))}.") from error
    if not isinstance(entries, list):
        raise BadAnnotations(path, "", "it is not a list of entries.", 'it looks like `[{"module": …, …}]`.')
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for number, entry in enumerate(cast("list[Any]", entries), 1):
        for where, one in _functions(path, f"entry {number}", entry):
            key = (one["module"], one["function"])
            if key in found:
                raise BadAnnotations(path, where, f"'{'.'.join(key)}' is in the file twice.")
            found[key] = one
            if len(found) > MOST:
                raise BadAnnotations(path, where, f"it names more than {MOST:,} functions.")
    if not found:
        raise BadAnnotations(path, "", "it names no function.")
    return tuple(found.values())


def _functions(path: Path, where: str, entry: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What an entry says of each of its functions, with a name for the place."""
    given = _object(path, where, entry, KEYS)
    functions = given.get("functions")
    if functions is None:
        raise BadAnnotations(path, where, "it has no 'functions'.", 'as in `"functions": ["forward"]`.')
    if not isinstance(functions, list) or not functions:
        raise BadAnnotations(path, where, "its 'functions' is empty or not a list.")
    shared = _common(path, where, given)
    for number, function in enumerate(cast("list[Any]", functions), 1):
        place = f"{where}, function {number}"
        own: Mapping[str, Any] = {}
        name = function
        if not isinstance(function, str):
            own = _object(path, place, function, OWN_KEYS)
            name = own.get("function")
            if name is None:
                raise BadAnnotations(path, place, "it has no 'function'.")
        one = {**shared, **_common(path, place, own)}
        module = one.get("module")
        if module is None:
            raise BadAnnotations(path, place, "neither it nor its entry has a 'module'.")
        name = _dotted(path, place, "function", name)
        text = f"{module}.{name}"
        if FORBIDDEN.match(text):
            raise BadAnnotations(
                path,
                place,
                f"'{shown(text)}' is used by lostflops to make annotations and cannot be annotated itself.",
                "annotate the function that calls it.",
            )
        yield (
            place,
            {
                "module": module,
                "function": name,
                "text": text,
                "domain": one.get("domain") or "",
                "color": one.get("color"),
            },
        )


def _object(path: Path, where: str, given: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise BadAnnotations(path, where, "it is not a JSON object.")
    entry = cast("dict[str, Any]", given)
    for key in entry:
        meant = "" if key in known or key.startswith("_") else suggestion(key, known)
        if meant:
            raise BadAnnotations(path, where, f"there is no key '{shown(key)}'.{meant}")
    return entry


def _common(path: Path, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that an entry and a function may both have, checked."""
    said: dict[str, Any] = {}
    if given.get("module") is not None:
        said["module"] = _dotted(path, where, "module", given["module"])
    for key in ("domain", "category"):
        text = given.get(key)
        if text is None:
            continue
        if not isinstance(text, str) or not text.isprintable() or len(text) > 200 or ":" in text:
            raise BadAnnotations(path, where, f"its {key} is not a text of one line without a colon.")
        said[key] = text
    if given.get("color") is not None:
        try:
            said["color"] = mark.argb(given["color"])
        except ValueError as error:
            raise BadAnnotations(
                path,
                where,
                f"its color {shown(json.dumps(given['color']))} is not a color.",
                f"a name ({', '.join(list(mark.COLORS)[:6])}, …), '0x008000', '#008000' or a number.",
            ) from error
    return said


def _dotted(path: Path, where: str, key: str, given: Any) -> str:
    if not isinstance(given, str) or not DOTTED.fullmatch(given) or len(given) > 1000:
        raise BadAnnotations(path, where, f"its {key} {shown(json.dumps(given))} is not a dotted name.")
    return given
