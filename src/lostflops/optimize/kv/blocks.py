"""Which tokens' keys and values are held, in which slot of host memory, and whose go first when it is full.

Keys and values of a token depend on all tokens before it and on nothing after it. So dialogues that begin
with the same tokens share them: tokens are cut into blocks of equal length, and a full block is known by the
digest of its tokens and of the block before it, so that equal digests mean equal beginnings. Blocks form a
tree whose root is the model. What does not fill a block is a dialogue's tail: it belongs to that dialogue
alone and grows in place.

A block may be used in part: its first rows are right for whoever shares no more than those.

The least recently used go first, leaves before what they stand on: whoever uses a block uses all before it,
so the order of last use, the later blocks of a dialogue first, never removes a block that another stands on.
Plain Python: nothing here knows what a row is.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lostflops.optimize.refused import Refused


@dataclass(eq=False)
class TokenBlock:
    """Tokens that lie together in a slot. `digest` is None while they do not fill it."""

    before: TokenBlock | None
    start: int  # of its first token in the dialogue
    slot: int
    tokens: tuple[int, ...] = ()
    digest: bytes | None = None
    absent: int = 0  # first rows that layers with a sliding window had dropped before they were stored
    used: int = 0  # when, by a count of uses
    holders: set[str] = field(default_factory=set[str])  # dialogues
    after: set[TokenBlock] = field(default_factory=set["TokenBlock"])

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Placed:
    """Where a dialogue's tokens lie: rows `first` to `last` of a block, of which only `fresh` ones need
    copying.
    """

    block: TokenBlock
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """What a dialogue that is suspended holds, what of that must be copied, and what gave way for it."""

    chain: list[TokenBlock]
    copies: list[Placed]
    kept: int  # tokens that this dialogue had stored before
    shared: int  # tokens that another dialogue had stored
    evicted: int  # tokens that lost their place


class Blocks:
    """The tree of blocks over a fixed number of slots of `size` tokens each."""

    def __init__(self, size: int, slots: int, model: str) -> None:
        self.size, self.slots = size, slots
        self.root = TokenBlock(None, 0, -1, digest=hashlib.sha256(model.encode()).digest())
        self.free = list(reversed(range(slots)))
        self.full: dict[bytes, TokenBlock] = {}
        self.held: set[TokenBlock] = set()
        self.dialogues: dict[str, list[TokenBlock]] = {}
        self._uses = 0

    def matching(self, tokens: Sequence[int]) -> list[Placed]:
        """The longest beginning of the tokens that is held, as rows of blocks in order. Whoever's it is."""
        found: list[Placed] = []
        last = self.root
        for block in self._full(tokens):
            found.append(Placed(block, 0, self.size))
            last = block
        rest = tokens[last.end : last.end + self.size]
        best = max(last.after, key=lambda block: (_common(block.tokens, rest), block.used), default=None)
        if best is not None and (rows := _common(best.tokens, rest)):
            found.append(Placed(best, 0, rows))
        return found

    def of(self, key: str) -> list[Placed]:
        """What is still held of a dialogue, from its beginning."""
        return [Placed(block, 0, len(block.tokens)) for block in self.dialogues.get(key, ())]

    def touch(self, blocks: Sequence[TokenBlock]) -> None:
        """They have just been used."""
        self._uses += 1
        for block in blocks:
            block.used = self._uses

    def place(self, key: str, tokens: tuple[int, ...]) -> Plan:
        """Gives the dialogue these tokens, evicting others as needed; the caller copies what the plan says.

        Refuses, with nothing changed, when they would not fit into empty memory.
        """
        needed = -(-len(tokens) // self.size)
        if needed > self.slots:
            raise Refused(
                f"{len(tokens):,} tokens need {needed:,} blocks of {self.size} tokens, and the budget holds "
                f"{self.slots:,}",
                f"give DialogueCache {needed / self.slots:.2g} times the host memory, or suspend only the "
                f"first {self.slots * self.size} tokens",
            )
        former = self.dialogues.get(key, [])
        own = set(former)
        chain = list(self._full(tokens))
        kept = sum(len(block.tokens) for block in chain if block in own)
        shared = sum(len(block.tokens) for block in chain if block not in own)
        copies: list[Placed] = []
        for start in range(len(chain) * self.size, len(tokens), self.size):
            part = tokens[start : start + self.size]
            last = chain[-1] if chain else self.root
            tail = former[-1] if former and former[-1].digest is None else None
            grows = tail is not None and tail.before is last and part[: len(tail.tokens)] == tail.tokens
            if grows and tail is not None:
                block, had = tail, len(tail.tokens)
                kept += had
            else:
                block, had = TokenBlock(last, start, -1), 0
            chain.append(block)
            if had < len(part):
                copies.append(Placed(block, had, len(part)))
        self.dialogues[key] = chain
        for block in chain:
            block.holders.add(key)
        for block in reversed(former):
            if block not in chain:
                self._let_go(block, key)
        evicted = self._make_room(sum(block.slot < 0 for block in chain), set(chain))
        for block in chain:
            if block.slot < 0:
                block.slot = self.free.pop()
                self.held.add(block)
                assert block.before is not None
                block.before.after.add(block)
        for placed in copies:
            self._fill(placed.block, tokens[placed.block.start : placed.block.start + placed.last])
        self.touch(chain)
        return Plan(chain, copies, kept, shared, evicted)

    def forget(self, key: str) -> int:
        """Drops a dialogue; the number of tokens that no other one holds, which are gone."""
        return sum(self._let_go(block, key) for block in reversed(self.dialogues.pop(key, [])))

    def restore(self, key: str, chain: list[TokenBlock]) -> None:
        """Gives a dialogue blocks that are held already: for what was read from a file."""
        self.dialogues[key] = chain
        for block in chain:
            block.holders.add(key)

    def add(self, before: TokenBlock, tokens: tuple[int, ...], absent: int) -> TokenBlock:
        """A block read from a file, in a slot of its own."""
        block = TokenBlock(before, before.end, self.free.pop(), absent=absent)
        self.held.add(block)
        before.after.add(block)
        self._fill(block, tokens)
        return block

    @property
    def tokens(self) -> int:
        """Held, each once."""
        return sum(len(block.tokens) for block in self.held)

    def _full(self, tokens: Sequence[int]) -> Iterator[TokenBlock]:
        last = self.root
        for start in range(0, len(tokens) - self.size + 1, self.size):
            block = self.full.get(_digest(last, tokens[start : start + self.size]))
            if block is None:
                return
            yield block
            last = block

    def _fill(self, block: TokenBlock, tokens: tuple[int, ...]) -> None:
        block.tokens = tokens
        if len(tokens) == self.size:
            assert block.before is not None
            block.digest = _digest(block.before, tokens)
            self.full[block.digest] = block

    def _make_room(self, wanted: int, using: set[TokenBlock]) -> int:
        """Evicts until so many slots are free, never what is in use; how many tokens that were."""
        lost = 0
        if len(self.free) >= wanted:
            return lost
        for block in sorted(self.held - using, key=lambda block: (block.used, -block.start)):
            if len(self.free) >= wanted:
                break
            for key in block.holders:
                chain = self.dialogues[key]
                assert chain[-1] is block
                chain.pop()
                if not chain:
                    del self.dialogues[key]
            lost += self._remove(block)
        return lost

    def _let_go(self, block: TokenBlock, key: str) -> int:
        block.holders.discard(key)
        return 0 if block.holders else self._remove(block)

    def _remove(self, block: TokenBlock) -> int:
        assert not block.after and block.before is not None
        block.before.after.discard(block)
        self.held.discard(block)
        if block.digest is not None:
            del self.full[block.digest]
        self.free.append(block.slot)
        return len(block.tokens)


def usable(found: Sequence[Placed], window: int) -> int:
    """How many first tokens of the match can be resumed, where layers attend over `window` tokens; 0: all
    layers see everything.

    A layer with a sliding window needs the last window - 1 rows before the next token, and does not have
    those that it had dropped before they were stored.
    """
    best, run = 0, 0  # `run`: where the rows that are there without a gap begin
    for placed in found:
        end = placed.block.start + placed.last
        if placed.block.absent and window:
            run = placed.block.start + placed.block.absent
        if run < end and run <= max(0, end - window + 1):
            best = end
    return best


def _digest(before: TokenBlock, tokens: Sequence[int]) -> bytes:
    assert before.digest is not None
    return hashlib.sha256(before.digest + array("q", tokens).tobytes()).digest()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for number, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return number
    return min(len(a), len(b))
