"""The arena gives host memory out of one slab, exactly as large as needed, and never twice at once."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.optimize.activations.offload.memory.arena import ALIGNMENT, Arena, HostBlock, aligned
from lostflops.optimize.refused import Refused


class Host:
    """Counts what it is asked for; events are done when told."""

    torch_device = torch.device("cpu")
    coherent = False

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.waited: list[Any] = []
        self.done: set[Any] = set()

    def host_memory(self, nbytes: int) -> torch.Tensor:
        self.asked.append(nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8)

    def current_stream(self) -> None: ...

    def record(self, stream: None) -> None: ...

    def is_done(self, event: Any) -> bool:
        return event in self.done

    def synchronize(self, event: Any) -> None:
        self.waited.append(event)
        self.done.add(event)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the arena needs no {name}")


def test_the_slab_is_what_is_needed_and_its_alignment_and_no_power_of_two() -> None:
    host = Host()
    arena = Arena(host, limit=10**9)
    sizes = [12_000, 5, 3_000_001]
    blocks = [arena.take(n) for n in sizes]
    for block in blocks:
        assert block is not None
        arena.give_back(block, None)
    assert arena.settle(arena.most_used_bytes)
    assert host.asked == [*sizes, sum(aligned(n) for n in sizes)]
    assert arena.held_bytes - sum(sizes) < ALIGNMENT * len(sizes)


def test_steps_after_the_first_ask_for_no_memory() -> None:
    host = Host()
    arena = Arena(host, limit=10**9)
    for step in range(5):
        blocks = [arena.take(n) for n in (700, 5_000, 60)]
        for block in blocks:
            assert block is not None
            arena.give_back(block, None)
        assert arena.idle
        assert arena.settle(arena.most_used_bytes)
        assert arena.allocations == 4, step


def test_a_full_slab_says_so_and_grows_only_between_steps() -> None:
    host = Host()
    arena = Arena(host, limit=10**9)
    assert arena.settle(1024)
    first = arena.take(1024)
    assert first is not None
    assert arena.take(600) is None
    assert not arena.settle(arena.most_used_bytes)  # somebody's bytes are in it
    arena.give_back(first, None)
    assert arena.settle(arena.most_used_bytes)
    assert host.asked == [1024, 1024]  # the second beside the first
    assert arena.held_bytes == 2048
    assert arena.take(1024) is not None
    assert arena.take(600) is not None


def test_more_than_the_limit_is_not_asked_for() -> None:
    host = Host()
    arena = Arena(host, limit=1000)
    assert arena.take(1001) is None
    assert arena.take(600) is not None
    assert arena.take(600) is None
    assert host.asked == [600]
    assert not Arena(host, limit=1000).settle(1001)


def test_the_next_owner_waits_for_those_who_still_read() -> None:
    host = Host()
    arena = Arena(host, limit=10**9)
    arena.settle(2 * ALIGNMENT)
    first, second = arena.take(10), arena.take(ALIGNMENT)
    assert first is not None
    assert second is not None
    assert first.after == ()
    arena.give_back(first, "reload of the first")
    arena.give_back(second, "reload of the second")
    both = arena.take(2 * ALIGNMENT)
    assert both is not None
    assert set(both.after) == {"reload of the first", "reload of the second"}
    arena.give_back(both, None)
    host.done.update(both.after)
    again = arena.take(10)
    assert again is not None
    assert again.after == ()


def test_of_many_readers_on_one_stream_the_next_owner_waits_for_the_last() -> None:
    host = Host()
    arena = Arena(host, limit=10**9)
    arena.settle(100 * ALIGNMENT)
    blocks = [arena.take(ALIGNMENT) for _ in range(100)]
    for number, block in enumerate(reversed(blocks)):
        assert block is not None
        arena.give_back(block, f"reload {number}", "in", (7 * number) % 100)
    whole = arena.take(100 * ALIGNMENT)
    assert whole is not None
    assert whole.after == ("reload 57",)  # 7 x 57 = 399


def test_memory_that_is_let_go_is_read_by_nobody() -> None:
    host = Host()
    arena = Arena(host, limit=10**9)
    piece = arena.take(10)
    assert piece is not None
    arena.give_back(piece, "reload of a piece")
    arena.settle(512)
    block = arena.take(10)
    assert block is not None
    arena.give_back(block, "reload from the slab")
    assert host.waited == ["reload of a piece"]
    del arena, block
    assert host.waited == ["reload of a piece", "reload from the slab"]


def test_more_is_got_beside_what_there_is_and_more_than_was_missing() -> None:
    """Steps whose longest batch grows by a hundredth each time."""
    host = Host()
    arena = Arena(host, limit=10**9)
    sizes = [round(100_000 * 1.01**step) for step in range(10)]
    for size in sizes:
        arena.settle(arena.most_used_bytes)
        blocks = [block for block in (arena.take(size) for _ in range(4)) if block is not None]
        for block in blocks:
            arena.give_back(block, None)
    assert len(host.asked) == 3  # the slab, one beside it, and one when blocks are too long for that
    assert sum(host.asked) == arena.held_bytes < 1.5 * 4 * sizes[-1]


def test_a_block_that_fits_nowhere_gets_a_slab_even_where_enough_is_free_in_all() -> None:
    host = Host()
    arena = Arena(host, limit=10**9)
    assert arena.settle(5120)
    assert arena.settle(5632)  # beside: a quarter more
    assert arena.take(6144) is None
    assert arena.settle(arena.most_used_bytes)
    assert arena.take(6144) is not None


class Unpinnable(Host):
    """Has no memory to pin beyond some."""

    def __init__(self, pinnable: int) -> None:
        super().__init__()
        self.pinnable = pinnable

    def host_memory(self, nbytes: int) -> torch.Tensor:
        self.asked.append(nbytes)
        self.pinnable -= nbytes
        if self.pinnable < 0:
            raise Refused("cannot be pinned", "raise the limit")
        return torch.zeros(nbytes, dtype=torch.uint8)


def test_what_cannot_be_pinned_is_plain_memory_and_asked_for_once() -> None:
    host = Unpinnable(1024)
    arena = Arena(host, limit=10**9)
    for _ in range(3):
        blocks = [arena.take(600) for _ in range(4)]
        for block in blocks:
            assert block is not None
            arena.give_back(block, None)
        assert arena.settle(arena.most_used_bytes)
        assert arena.held_bytes == 4 * 1024 == arena.pageable_bytes
    assert host.asked == [600, 600]
    assert arena.not_pinned == "cannot be pinned"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 5000).map(lambda n: ("take", n)), st.integers(0, 20).map(lambda i: ("give", i))
        ),
        max_size=60,
    ),
    st.integers(0, 20_000),
)
def test_blocks_never_overlap_and_what_is_given_back_is_whole_again(
    verbs: list[tuple[str, int]], size: int
) -> None:
    """The oracle marks every byte that is given out."""
    arena = Arena(Host(), limit=10**9)
    arena.settle(size)
    room = aligned(size)
    owned = [False] * room
    held: list[HostBlock] = []
    for verb, number in verbs:
        if verb == "take":
            block = arena.take(number) if size else None
            if block is None:
                longest = max(
                    (len(run) for run in "".join("x" if byte else "." for byte in owned).split("x")),
                    default=0,
                )
                assert longest < aligned(number) or not size
                continue
            assert block.offset is not None
            assert block.offset % ALIGNMENT == 0
            span = range(block.offset, block.offset + aligned(number))
            assert not any(owned[byte] for byte in span)
            for byte in span:
                owned[byte] = True
            held.append(block)
        elif held:
            block = held.pop(number % len(held))
            assert block.offset is not None
            for byte in range(block.offset, block.offset + aligned(block.memory.numel())):
                owned[byte] = False
            arena.give_back(block, None)
        assert arena.used_bytes == sum(owned)
    for block in held:
        arena.give_back(block, None)
    assert arena.idle
    if size:
        whole = arena.take(room)
        assert whole is not None
        assert whole.offset == 0
