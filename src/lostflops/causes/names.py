"""How a finding names what it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lostflops.finding import Finding, milliseconds

BUBBLE = "pipeline-bubble"  # the finding about stages that wait for each other
MOST = 3  # names that a finding shows
NAMED_FROM = 0.1  # of what a finding costs, which a name must hold to be shown
LONGEST = 60
SCRIPT = "<module>"  # what a script does outside of functions: all of it
# Late since a step, or up to one: in how many at least, what of its mean lateness it has in each of them, and
# at most in a mean one of the others.
IN_A_ROW, STEADY, BEFORE = 3, 0.5, 0.1
ALL_OF_IT = 0.995  # of the difference; a rank's share may be more than all
MOST_NAMED = 8  # ranks
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_INSIDE = re.compile(r"^(?P<what>.+?) in (?P<frame>\S+\(\d+\): .+)$")
_BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<function>[^\s>]+)")
_PLACE = re.compile(r" \([^()]*:\d+\)")
_LOGGING = re.compile(
    r"(?:^|[/`. ])(?:logging|tqdm|rich|wandb|tensorboardX?|mlflow|comet_ml|neptune|clearml)\b"
    r"|\bprint\b|TextIOWrapper|(?:^|[ _`-])(?i:log(?:ging|s)?)(?:[ _`.:/-]|$)"
)
SAVED, LOGGED, EITHER = "checkpoints", "logging", "checkpoints or logging"


def saved_or_logged(parts: Sequence[tuple[str, int]]) -> str:
    """What the names in the account of checkpoints and logs are of, by most of their time."""
    logging = sum(ns for name, ns in parts if _LOGGING.search(name))
    return EITHER if not parts else SAVED if 2 * logging < sum(ns for _, ns in parts) else LOGGED


def spoken(name: str) -> str:
    """A host row's name as a finding shows it: a Python frame as its function and place."""
    inside = _INSIDE.match(name)
    if inside:
        what, around = spoken(inside["what"]), _FRAME.match(inside["frame"])
        if around and around["function"] == SCRIPT:  # outside of all functions: only the line tells
            return what if _PLACE.search(what) else f"{what} ({_file(around)}:{around['line']})"
        return f"{what} in {spoken(inside['frame'])}"
    frame = _FRAME.match(name)
    if frame:
        return f"`{_short(frame['function'])}` ({_file(frame)}:{frame['line']})"
    built_in = _BUILT_IN.match(name)
    name = name.removeprefix("enumerate(DataLoader)#")
    return f"`{_short(built_in['function'] if built_in else name)}`"


def _file(frame: re.Match[str]) -> str:
    return _short(frame["file"].replace("\\", "/").rpartition("/")[2])


def without_place(said: str) -> str:
    """What `spoken` gives without files and lines.

    >>> without_place("`time.sleep` in `f` (train.py:3)")
    '`time.sleep` in `f`'
    """
    return _PLACE.sub("", said)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def contributors(parts: Iterable[tuple[str, int]], at_least: int = 0) -> tuple[str, ...]:
    """The largest parts by name, each with its time, ns. What is below `at_least` says nothing."""
    return tuple(f"{name} {milliseconds(ns)}" for name, ns in _largest(parts, at_least))


def made_of(finding: Finding, parts: Iterable[tuple[str, int]]) -> Finding:
    """The finding with the largest of its parts: those from a tenth of what it costs on."""
    told = _largest(parts, round(NAMED_FROM * finding.size))
    return replace(
        finding,
        contributors=contributors(told),
        contributed=sum(ns for _, ns in told),
    )


def _largest(parts: Iterable[tuple[str, int]], at_least: int) -> list[tuple[str, int]]:
    named: dict[str, int] = {}
    for name, ns in parts:
        named[name] = named.get(name, 0) + ns
    largest = sorted(named.items(), key=lambda part: (-part[1], part[0]))[:MOST]
    return [(name, ns) for name, ns in largest if ns > 0 and ns >= at_least]


def untold_after_wait(ns: int) -> str:
    """That so much of a wait for the device may be what the CPU did after it, which has no row."""
    return f"for {milliseconds(ns)} of it only call stacks would tell what the CPU did after the wait"


def on_ranks(called: str, remedy: str) -> str:
    """The remedy where it is for some ranks only, as "On rank 3: look at …"; a command stays as it is."""
    is_sentence = remedy[:1].isupper() and remedy[1:2].islower()
    return f"On {called}: {remedy[0].lower()}{remedy[1:]}" if is_sentence else remedy


def bytes_of(size: int) -> str:
    """An amount of bytes with three digits."""
    for unit, one in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= one:
            return f"{size / one:.3g} {unit}"
    return "1 byte" if size == 1 else f"{size} bytes"


def listed(items: Sequence[str], last: str = "and") -> str:
    """Items in a sentence: 'a', 'a and b', 'a, b and c'."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def in_some(steps: Sequence[int], each: Sequence[int]) -> str:
    """The steps, no more than half of all, in which a rank is late that is not so in the others."""
    mean = sum(each) / max(1, len(each))
    late = [(step, ns) for step, ns in zip(steps, each, strict=True) if ns > mean]
    rest = sum(each) - sum(ns for _, ns in late)
    if not 2 <= len(late) <= min(MOST_NAMED, len(each) // 2):
        return ""
    own = sum(ns for _, ns in late) / len(late)
    if min(ns for _, ns in late) < STEADY * own or rest > BEFORE * own * (len(each) - len(late)):
        return ""
    whole = rest <= (1 - ALL_OF_IT) * sum(each)
    return f"{'all' if whole else 'nearly all'} of it in steps {listed([str(step) for step, _ in late])}"


def from_to(first: int, last: int) -> str:
    """Steps that follow each other: 'step 5', 'steps 5 and 6', 'steps 5 to 7'."""
    if first == last:
        return f"step {first}"
    return f"steps {first} {'and' if last == first + 1 else 'to'} {last}"


def called(ranks: Sequence[int]) -> str:
    """Ranks in words: 'rank 3', 'ranks 0, 2 and 5', 'ranks 0 to 7'."""
    if len(ranks) > 3 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    numbers = [str(rank) for rank in ranks]
    named = listed(numbers) if len(numbers) <= MOST_NAMED else ", ".join(numbers[:3]) + ", …"
    return f"rank{'s' * (len(ranks) > 1)} {named}"


def like_the_others(ranks: Iterable[int]) -> str:
    """The edit that makes these ranks like the others."""
    return f"even-ranks:{'+'.join(map(str, ranks))}"
