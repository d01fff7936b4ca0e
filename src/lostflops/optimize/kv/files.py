"""Dialogues that outlive the process: a folder with an index in JSON and one file of rows.

    index.json         what is held: layout, model, blocks, dialogues; names the file of rows and its digest
    rows-<digest>.bin  of each block in the index's order, each layer's rows, without what is not filled

The index is replaced last and at once, so the folder holds either what it held before or all that is new. It
is data only: nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from lostflops.optimize.kv.blocks import Blocks, TokenBlock
from lostflops.optimize.kv.rows import BlockLayout, layout_of
from lostflops.optimize.refused import Refused

INDEX, KIND, FORMAT = "index.json", "lostflops dialogue cache", 1
ROWS = re.compile(r"rows-[0-9a-f]{64}\.bin")
RowsOf = Callable[[int, int, int, int], torch.Tensor]  # of slot, layer, first, last: uint8
PIECE = 16 << 20


@dataclass(frozen=True)
class _Block:
    before: int  # index of the block that it follows; -1: none
    tokens: tuple[int, ...]
    absent: int


@dataclass(frozen=True)
class SavedRows:
    """An index that has been checked, and where its rows are."""

    layout: BlockLayout
    model: str | None
    blocks: tuple[_Block, ...]
    dialogues: dict[str, tuple[int, ...]]  # indices of blocks
    rows: Path


def save(folder: Path, layout: BlockLayout, blocks: Blocks, rows_of: RowsOf, model: str | None) -> None:
    """Writes what is held; the caller has waited for all copies."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    index = folder / INDEX
    if index.exists():
        _index(index)  # refuses to write over what is not ours
    # What is used first comes last in `sorted`, so an order of use survives; parents come before children.
    ordered = sorted(blocks.held, key=lambda block: (block.used, -block.start), reverse=True)
    numbers = {block: number for number, block in enumerate(ordered)}
    digest = hashlib.sha256()
    draft = folder / f".rows-{os.getpid()}"
    try:
        with _private(draft) as file:
            for block in ordered:
                for piece in _pieces(layout, block.slot, len(block.tokens), rows_of):
                    raw = memoryview(cast("Any", piece).numpy())
                    digest.update(raw)
                    file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        rows = folder / f"rows-{digest.hexdigest()}.bin"
        draft.replace(rows)
        header = {
            "kind": KIND,
            "format": FORMAT,
            "model": model,
            "layout": layout.to_json(),
            "rows": rows.name,
            "rows_bytes": rows.stat().st_size,
            "blocks": [
                {
                    "before": numbers.get(cast("TokenBlock", block.before), -1),
                    "tokens": list(block.tokens),
                    "absent": block.absent,
                }
                for block in ordered
            ],
            "dialogues": {
                key: [numbers[block] for block in chain] for key, chain in blocks.dialogues.items()
            },
        }
        body = json.dumps(header, separators=(",", ":"))
        new = folder / f".index-{os.getpid()}"
        try:
            with _private(new) as file:
                file.write(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest()}).encode() + b"\n")
                file.write(body.encode())
                file.flush()
                os.fsync(file.fileno())
            new.replace(index)
        finally:
            new.unlink(missing_ok=True)
    finally:
        draft.unlink(missing_ok=True)
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)
    for old in folder.iterdir():
        if ROWS.fullmatch(old.name) and old != rows:
            old.unlink()


def read(folder: Path) -> SavedRows:
    """The index, checked, and the size of the rows. Refuses what `save` did not write."""
    index = folder / INDEX
    if not index.is_file():
        raise Refused(
            f"there is no saved DialogueCache in '{folder}'", "name the folder that save() was given"
        )
    header = _index(index)
    try:
        saved = _checked(header, folder)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _damaged(index, f"its contents do not fit together ({error})") from error
    size = saved.rows.stat().st_size if saved.rows.is_file() else None
    expected = sum(len(block.tokens) for block in saved.blocks) * saved.layout.token_bytes
    if size != header["rows_bytes"] or size != expected:
        raise _damaged(
            saved.rows, f"{'missing' if size is None else f'{size:,} bytes'} instead of {expected:,} bytes"
        )
    return saved


def restore(saved: SavedRows, blocks: Blocks, rows_of: RowsOf) -> None:
    """Fills empty blocks. Refuses when there are fewer slots than saved blocks, or the rows are not those
    saved.
    """
    if len(saved.blocks) > blocks.slots:
        raise Refused(
            f"{len(saved.blocks):,} blocks were saved, and the budget holds {blocks.slots:,}",
            f"load with {len(saved.blocks) / max(1, blocks.slots):.2g} times the host memory",
        )
    made: list[TokenBlock] = []
    digest = hashlib.sha256()
    with saved.rows.open("rb") as file:
        for each in saved.blocks:
            block = blocks.add(
                made[each.before] if each.before >= 0 else blocks.root, each.tokens, each.absent
            )
            made.append(block)
            for piece in _pieces(saved.layout, block.slot, len(each.tokens), rows_of):
                raw = memoryview(cast("Any", piece).numpy())
                if file.readinto(raw) != len(raw):
                    raise _damaged(saved.rows, "it ends early")
                digest.update(raw)
    if saved.rows.name != f"rows-{digest.hexdigest()}.bin":
        raise _damaged(saved.rows, "its digest is another")
    for key, chain in saved.dialogues.items():
        blocks.restore(key, [made[number] for number in chain])
    for block in reversed(made):  # the order of use
        blocks.touch([block])


def _pieces(layout: BlockLayout, slot: int, tokens: int, rows_of: RowsOf) -> Iterator[torch.Tensor]:
    for number, shape in enumerate(layout.layers):
        if shape:
            yield from cast("Any", rows_of(slot, number, 0, tokens)).split(PIECE)


def _index(path: Path) -> dict[str, Any]:
    """What the index says, if it is one of ours and whole."""
    first, _, body = path.read_bytes().partition(b"\n")
    try:
        expected = json.loads(first)["sha256"]
        header = json.loads(body)
        if header["kind"] != KIND:
            raise ValueError(header["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "it is no index of a DialogueCache") from error
    if header["format"] != FORMAT:
        raise Refused(
            f"'{path}' is of format {header['format']}, and this is written for {FORMAT}",
            "use the version of lostflops that saved it",
        )
    if hashlib.sha256(body).hexdigest() != expected:
        raise _damaged(path, "its digest is another")
    return cast("dict[str, Any]", header)


def _checked(header: Mapping[str, Any], folder: Path) -> SavedRows:
    layout = layout_of(header["layout"])
    if not ROWS.fullmatch(header["rows"]):
        raise ValueError(f"rows in '{header['rows']}'")
    blocks: list[_Block] = []
    for number, each in enumerate(cast("list[dict[str, Any]]", header["blocks"])):
        tokens: tuple[int, ...] = tuple(each["tokens"])
        before: int = each["before"]
        absent: int = each["absent"]
        whole = all(type(n) is int and -(1 << 63) <= n < 1 << 63 for n in (*tokens, before, absent))
        if not whole or not -1 <= before < number or not 0 <= absent <= len(tokens):
            raise ValueError(f"block {number}")
        if not 0 < len(tokens) <= layout.block_tokens:
            raise ValueError(f"block {number} of {len(tokens)} tokens")
        if before >= 0 and len(blocks[before].tokens) != layout.block_tokens:
            raise ValueError(f"block {number} follows one that is not full")
        blocks.append(_Block(before, tokens, absent))
    dialogues: dict[str, tuple[int, ...]] = {}
    for key, chain in header["dialogues"].items():
        for parent, number in zip((-1, *chain), chain, strict=False):
            if type(number) is not int or not 0 <= number < len(blocks) or blocks[number].before != parent:
                raise ValueError(f"dialogue of blocks {chain}")
        dialogues[key] = tuple(chain)
    holders = Counter(number for chain in dialogues.values() for number in chain)
    if set(holders) != set(range(len(blocks))):
        raise ValueError("blocks of no dialogue")
    if any(holders[n] > 1 for n, block in enumerate(blocks) if len(block.tokens) < layout.block_tokens):
        raise ValueError("a tail of two dialogues")
    full = [(block.before, block.tokens) for block in blocks if len(block.tokens) == layout.block_tokens]
    if len(set(full)) < len(full):
        raise ValueError("a block that is there twice")
    model = header["model"]
    if model is not None and not isinstance(model, str):
        raise ValueError("model")
    return SavedRows(layout, model, tuple(blocks), dialogues, folder / header["rows"])


def _private(path: Path) -> BinaryIO:
    """A new file that only its owner reads: what people said is in it."""
    path.unlink(missing_ok=True)
    return cast("BinaryIO", os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"))


def _damaged(path: Path, why: str) -> Refused:
    return Refused(
        f"'{path}' is damaged, or not ours: {why}", "delete the folder, and let dialogues begin anew"
    )
