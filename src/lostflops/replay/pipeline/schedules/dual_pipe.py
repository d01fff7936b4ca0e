"""DualPipe: microbatches enter at both ends, and passes forward one way run beside passes back the other.

Every rank holds two stages, its own and the one as far from the other end. As DeepSeek-V3's report and code
have it, half of the microbatches go each way.
"""

from __future__ import annotations

from typing import NamedTuple


class WayPass(NamedTuple):
    """A pass of a microbatch on its way: 0 from the first rank to the last, 1 the other way round.

    `kind` is F, B for a whole backward pass, I for the gradients of inputs alone, W for those of weights.
    """

    kind: str
    way: int
    microbatch: int


def allowed(ranks: int, microbatches: int) -> str:
    """Why so many microbatches do not go through so many ranks, or nothing."""
    if ranks % 2:
        return f"DualPipe needs an even number of stages, and there are {ranks}"
    if microbatches % 2 or microbatches < 2 * ranks:
        return f"DualPipe needs an even number of microbatches, at least {2 * ranks} for {ranks} stages"
    return ""


def order(ranks: int, rank: int, microbatches: int) -> list[tuple[WayPass, ...]]:
    """What a rank does in a step, in order; passes in one tuple run beside each other."""
    second = rank >= ranks // 2
    near = min(rank, ranks - 1 - rank)  # how far from its end
    behind = ranks // 2 - near - 1
    count = dict[tuple[str, int], int]()
    put_off = list[tuple[int, int]]()
    found = list[tuple[WayPass, ...]]()

    def one(kind: str, other: int) -> WayPass:
        """The next pass, of the way that begins at the nearer end or of the other."""
        if kind == "W":
            return WayPass("W", *put_off.pop(0))
        way = other ^ int(second)
        group = "F" if kind == "F" else "B"
        number = count[group, way] = count.get((group, way), -1) + 1
        if kind == "I":
            put_off.append((way, number))
        return WayPass(kind, way, number)

    found += [(one("F", 0),) for _ in range(2 * behind)]
    for _ in range(near + 1):
        found += [(one("F", 0),), (one("F", 1),)]
    for _ in range(behind):
        found += [(one("I", 1),), (one("W", 0),), (one("F", 1),)]
    for number in range(microbatches // 2 - ranks + near + 1):
        both = one("F", 0), one("B", 1)
        # In the middle the first two wait for each other: side by side they would begin later.
        found += [both[:1], both[1:]] if number == 0 and not behind else [both]
        found.append((one("F", 1), one("B", 0)))
    for _ in range(behind):
        found += [(one("B", 1),), (one("F", 1), one("B", 0))]
    half = (near + 1) // 2
    for number in range(near + 1):
        late = number > half or (number == half and near % 2 == 1)
        found.append((one("I" if late else "B", 1),))
        found.append((one("I" if number >= half else "B", 0),))
    for _ in range(behind):
        found += [(one("W", 0),), (one("I", 0),)]
    return found + [(one("W", 0),) for _ in range(near + 1)]
