"""Name a stretch of idle time by what its host thread was at: the deepest row that tells most of it.

A row tells a stretch when it covers at least half of it, and no tenth of it lies in others beside that row;
of those the deepest says most. Where the rows inside it tell more than it does, the stretch is cut where they
begin and end, and each part is named by itself: what runs next gets its own time. Rows of less than a tenth
of a stretch are not looked at, so a loop keeps the name of its function however many operators it calls; but
short calls of one function of the user's count as one from the first to the last, where they fill half of
that. A stretch that no row covers is cut at the outermost rows in it.

A name is what ran and the deepest function of the user's around it, where the two differ: 'time.sleep in
train.py(16): step'. What stands between them, and what every call passes through, is left out.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals
from lostflops.intervals import Int, by_name
from lostflops.naming import step_marks
from lostflops.tables import NAME

Bool = npt.NDArray[np.bool_]
LANE = ("rank", "thread")
TELLING = 10  # a row tells something of a stretch from a tenth of it on

# Packages whose frames are not the user's. Those of the standard library are known by themselves.
LIBRARIES = frozenset({
    "torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torchrec", "torchao",
    "torchtitan", "torchtune", "functorch", "triton", "fbgemm_gpu", "transformers", "accelerate",
    "datasets", "tokenizers", "peft", "trl", "diffusers", "timm", "safetensors", "einops",
    "huggingface_hub", "bitsandbytes", "lightning", "lightning_fabric", "pytorch_lightning",
    "deepspeed", "megatron", "apex", "flash_attn", "xformers", "transformer_engine", "vllm",
    "sglang", "fairscale", "composer", "streaming", "litdata", "webdataset", "ffcv", "nvidia",
    "numpy", "scipy", "pandas", "sklearn", "PIL", "cv2", "wandb", "tensorboard", "tensorboardX",
    "mlflow", "comet_ml", "neptune", "clearml", "tqdm", "rich", "yaml", "omegaconf", "hydra",
    "absl", "fsspec", "s3fs", "pyarrow", "h5py", "zarr", "sympy", "networkx", "jinja2", "click",
    "typer", "requests", "urllib3", "torch_npu", "torch_xla", "intel_extension_for_pytorch",
    "habana_frameworks", "ray", "dask", "distributed", "lostflops", "lostflops_recorder",
})  # fmt: skip
_STANDARD = frozenset(sys.stdlib_module_names) - {"test", "code", "profile", "this", "types", "trace"}
# Frames and ranges that hold others and say nothing of them.
_PLUMBING = re.compile(
    r"^PyTorch Profiler|^torch/profiler/(?!profiler\.py\(\d+\): step$)|^torch/autograd/profiler\.py"
    r"|^torch/nn/modules/module\.py\(\d+\): (?:_wrapped_call_impl|_call_impl|__call__|_slow_forward|inner)$"
    r"|^torch/(?:utils/_contextlib|_dynamo/eval_frame|_compile|_ops|_jit_internal)\.py\("
    r"|^contextlib\.py\(|^functools\.py\(|^runpy\.py\(|^<frozen runpy>"
    r"|^threading\.py\(\d+\): (?:_bootstrap|run)"
    r"|^torch/(?:_tensor|autograd/__init__|autograd/graph)\.py\(\d+\): (?:backward|_engine_run_backward)$"
    r"|^<built-in (?:function|method) _record_function_(?:enter|exit)\w*"
    r"|^<built-in method run_backward of "
    r"|^lostflops_recorder/(?:\w+/)?\w+\.py\(\d+\): "
    r"(?:backward|called|counting|named|outer|outermost|__call__)$"
)
_BUILT, _RECORDER = "<built-in ", "lostflops_recorder/"  # what such frames begin with
# What wrappers of the recorder ask for themselves: the time, and which thread this is.
_ASKS = re.compile(
    r"^<built-in function (?:monotonic_ns|thread_time_ns|get_ident)>$"
    r"|^threading\.py\(\d+\): (?:ident|main_thread)$"
)
_FRAME = re.compile(r"^(.+?)\(\d+\): ")
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_BUILT_IN = re.compile(
    r"^<built-in (?:function|method) (\S+?)(?: of (?:type |module )?(\S+?)(?: object)?)?>$"
)
# Functions that Kineto names without the module which everybody names with them.
_MODULES = {"sleep": "time.sleep", "collect": "gc.collect", "fsync": "os.fsync", "dump": "pickle.dump"}
# What makes tensors of Python's numbers, one by one; other functions of torch are operators as well.
_CREATES = frozenset({"tensor", "as_tensor", "asarray", "frombuffer"})


def says_nothing(name: str) -> bool:
    """Whether a row only holds others: the mark of a step, a wrapper that every call passes through."""
    return _PLUMBING.search(name) is not None or step_marks.says_nothing(name)


def is_users(name: str) -> bool:
    """Whether a row is a Python function that the user wrote, and not a library's.

    A comprehension is none by itself: people know it by the function that it stands in.

    >>> is_users("train.py(16): preprocess"), is_users("torch/hub.py(3): load"), is_users("queue.py(1): get")
    (True, False, False)
    >>> is_users("train.py(18): <listcomp>")
    False
    """
    found = _FRAME.match(name)
    if found is None or name.startswith("<") or name[found.end() :] in _COMPREHENSIONS:
        return False
    path = found[1].replace("\\", "/")
    first, _, rest = path.partition("/")
    stem = first if rest else first.removesuffix(".py")
    return stem not in _STANDARD and stem not in LIBRARIES


def _inner_functions(texts: Sequence[str]) -> Int:
    """For each name of a frame of the standard library a number of its file, negative where the function is
    an inner one of it, such as `_deepcopy_list`; 0 for all others. Nobody calls such a function by itself.
    """
    files: dict[str, int] = {}
    told = np.zeros(len(texts), np.int64)
    for number, text in enumerate(texts):
        found = _FRAME.match(text)
        if found and found[1].partition("/")[0].removesuffix(".py") in _STANDARD:
            file = files.setdefault(found[1], len(files) + 1)
            told[number] = -file if text[found.end() :].startswith("_") else file
    return told


def spoken(name: str) -> str:
    """A row's name as people call it, without addresses.

    >>> spoken("<built-in function sleep>"), spoken("<built-in method item of Tensor object at 0x7f11>")
    ('time.sleep', 'Tensor.item')
    """
    text = _ADDRESS.sub("", name)
    found = _BUILT_IN.match(text)
    if found is None:
        return text
    what, of = found.groups()
    if of == "object":  # of a type that Python does not name: most are torch's own functions
        return f"torch.{what}" if what in _CREATES else what
    return f"{of}.{what}" if of and of != "module" else _MODULES.get(what, what)


def named(stretches: pl.DataFrame, rows: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """`stretches` of threads, with `name`, cut where several rows share one; the parts add up exactly.

    `stretches` have rank, thread, start and end, and those of one thread are disjoint. `rows` are tables of
    what the threads did (rank, thread, start, end, name), the outer ones of two with the same times first.
    The name is null where no row covers a part.
    """
    lanes = stretches.select(LANE).unique(maintain_order=True).with_row_index("_lane")
    lanes = lanes.with_columns(pl.col("_lane").cast(pl.Int64))
    asked = stretches.with_row_index("_asked").join(lanes, on=LANE, how="left").sort("_lane", "start")
    did, texts = _rows(asked, rows, lanes)
    users = np.array([is_users(text) for text in texts], dtype=np.bool_)
    did = _with_calls_as_one(asked, did, users)
    parts = _parts(asked, did, users, texts)
    found = pl.DataFrame(
        {
            "_asked": parts.asked,
            "_from": parts.start,
            "_to": parts.end,
            "name": _told(texts, _text_of(did, parts.row), _text_of(did, parts.around)),
        }
    )
    cut = (
        found.join(asked.with_columns(pl.col("_asked").cast(pl.Int64)), on="_asked")
        .with_columns(start="_from", end="_to")
        .sort("_asked", "start")
    )
    same = ["_asked", "name"]
    begins = pl.any_horizontal(pl.col(same).ne_missing(pl.col(same).shift())).fill_null(True)
    first = np.flatnonzero(cut.select(begins).to_series().to_numpy())
    last = np.r_[first[1:] - 1, cut.height - 1][: len(first)]
    return cut[first].with_columns(end=cut["end"][last]).select(*stretches.columns, pl.col("name").cast(NAME))


def _text_of(did: _Rows, row: Int) -> Int:
    return np.where(row >= 0, did.text[row], -1) if len(did.text) else np.full(len(row), -1)


def _told(texts: list[str], leaf: Int, around: Int) -> pl.Series:
    """The names of parts: what ran, and the user's function around it where that is another."""

    def name(what: int, where: int) -> str | None:
        if what < 0:
            return None
        return spoken(texts[what]) + ("" if where in (-1, what) else f" in {texts[where]}")

    pairs = pl.DataFrame({"leaf": leaf, "around": around})
    distinct = pairs.unique()
    names = [name(what, where) for what, where in distinct.iter_rows()]
    known = distinct.with_columns(name=pl.Series(names, dtype=pl.String))
    return pairs.join(known, on=["leaf", "around"], how="left", maintain_order="left")["name"]


@dataclass(frozen=True)
class _Rows:
    """Rows that overlap the stretches, as arrays; `tells` marks those of a tenth of one or more."""

    start: Int
    end: Int
    lane: Int
    text: Int
    tells: Bool


@dataclass(frozen=True)
class _Parts:
    """Parts of stretches, with the row that names each (-1 for none), and the user's function around it."""

    asked: Int
    start: Int
    end: Int
    row: Int
    around: Int


def _rows(
    asked: pl.DataFrame, tables: Sequence[pl.DataFrame], lanes: pl.DataFrame
) -> tuple[_Rows, list[str]]:
    first, last, of = (asked[c].to_numpy() for c in ("start", "end", "_lane"))
    of_rank, of_thread = (lanes[c].to_numpy() for c in LANE)  # the place of a lane is its number
    texts: dict[str, int] = {}
    kept: list[Sequence[npt.NDArray[Any]]] = []
    for table in tables if lanes.height else ():
        table = table.drop_nulls(["name", "thread"])
        words, named = by_name(table["name"])
        codes = [-1 if says_nothing(word) else texts.setdefault(word, len(texts)) for word in words]
        text = np.array(codes, np.int64)[named]
        for at, word in _asked_by_recorder(table, words, named):
            text[at] = texts.setdefault(word, len(texts))
        rank, thread, start, end = (table[c].to_numpy() for c in (*LANE, "start", "end"))
        of_lanes, asked_for = intervals.one_axis((of_rank, of_thread), (rank, thread))
        by_lane = np.argsort(of_lanes)
        place = np.searchsorted(of_lanes, asked_for, sorter=by_lane)
        lane = by_lane.take(place, mode="clip")
        held = np.flatnonzero((end > start) & (text >= 0) & (of_lanes[lane] == asked_for))
        start, end, lane, text = start[held], end[held], lane[held], text[held]
        # The first stretch that has not ended when a row begins, and the last begun when it ends.
        one = intervals.at_most(of, last, lane, start)
        other = intervals.at_most(of, first, lane, end - 1) - 1
        over = np.flatnonzero(one <= other)
        start, end, lane, text, one, other = (a[over] for a in (start, end, lane, text, one, other))
        tells = other - one >= 2
        for at in (one, other):
            shared = np.minimum(end, last[at]) - np.maximum(start, first[at])
            tells |= shared * TELLING >= last[at] - first[at]
        kept.append([start, end, lane, text, tells])
    empty: Sequence[npt.NDArray[Any]] = (*[np.zeros(0, np.int64)] * 4, np.zeros(0, np.bool_))
    return _Rows(*(np.concatenate(some) for some in zip(empty, *kept, strict=True))), list(texts)


def _asked_by_recorder(table: pl.DataFrame, words: Sequence[str], named: Int) -> Iterator[tuple[Int, str]]:
    """Rows of what a wrapper of the recorder asks for, which is no row itself, and what to call them: the
    wrapper, where none of the job's functions lies between."""
    wrappers = [n for n, word in enumerate(words) if word.startswith(_RECORDER) and says_nothing(word)]
    asks = [n for n, word in enumerate(words) if _ASKS.search(word)]
    at = np.flatnonzero(np.isin(named, asks)) if wrappers else np.zeros(0, np.int64)
    if not len(at):
        return
    users = [n for n, word in enumerate(words) if is_users(word)]
    around = table.select(*LANE, "start", "end", word=pl.Series(named))[
        np.flatnonzero(np.isin(named, [*wrappers, *users]))
    ]
    held = intervals.innermost(table.select(*LANE, "start")[at], around, LANE, "word")
    within = held.fill_null(-1).to_numpy()
    for wrapper in wrappers:
        yield at[within == wrapper], words[wrapper]


def _with_calls_as_one(asked: pl.DataFrame, rows: _Rows, users: Bool) -> _Rows:
    """`rows`, and one more for the short calls of a user's function from one place in a stretch.

    A loop of a library, such as a loader's over the samples of a batch, would else hide what it calls. A
    place is a row of a tenth and more, or the short calls of a function which stand for one themselves.
    """
    first, last, lane = (asked[c].to_numpy() for c in ("start", "end", "_lane"))
    own = users[rows.text]
    if not own.any():
        return rows
    some = np.flatnonzero(own | rows.tells)
    one = intervals.at_most(lane, last, rows.lane[some], rows.start[some])
    other = intervals.at_most(lane, first, rows.lane[some], rows.end[some] - 1) - 1
    apart = other > one
    row, of = np.r_[some, some[apart]], np.r_[one, other[apart]]
    start, end = np.maximum(rows.start[row], first[of]), np.minimum(rows.end[row], last[of])
    short = (end - start) * TELLING < last[of] - first[of]
    held = np.flatnonzero(~short | own[row])
    held = held[np.argsort(row[held], kind="stable")]  # of two with the same times the outer one stands first
    row, short = row[held], short[held]
    forest = intervals.nest(start[held], end[held], of[held])
    row, short = row[forest.order], short[forest.order]
    start, end, of, text = forest.start, forest.end, forest.group, rows.text[row]
    place, groups = np.arange(len(row)), len(row)
    by_depth = np.argsort(forest.depth, kind="stable")
    levels = np.searchsorted(forest.depth[by_depth], np.arange(int(forest.depth.max(initial=-1)) + 2))
    for low, high in itertools.pairwise(levels.tolist()):
        at = by_depth[low:high]
        at = at[short[at]]
        parent = forest.parent[at]
        within = np.where(parent >= 0, place[parent], -1 - of[at])
        _, same = np.unique(np.stack((within, text[at])), axis=1, return_inverse=True)
        place[at] = groups + same.ravel()
        groups += int(same.max(initial=-1)) + 1
    calls = np.flatnonzero(short)
    group = place[calls]
    order = np.lexsort((start[calls], group))
    calls, group = calls[order], group[order]
    begins = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])
    if not len(begins):
        return rows
    ends = np.r_[begins[1:], len(group)] - 1
    spent = np.add.reduceat((end - start)[calls], begins)
    opens, closes = start[calls[begins]], np.maximum.reduceat(end[calls], begins)
    stretch = of[calls[begins]]
    kept = (ends > begins) & (2 * spent >= closes - opens)
    kept &= (closes - opens) * TELLING >= (last - first)[stretch]
    made = calls[begins[kept]]
    return _Rows(
        np.r_[rows.start, opens[kept]],
        np.r_[rows.end, closes[kept]],
        np.r_[rows.lane, lane[of[made]]],
        np.r_[rows.text, text[made]],
        np.r_[rows.tells, np.ones(len(made), np.bool_)],
    )


def _parts(asked: pl.DataFrame, rows: _Rows, users: Bool, texts: Sequence[str]) -> _Parts:
    """Cut the stretches and find the row that names each part. `users` marks texts of user's functions."""
    inner_of = _inner_functions(texts)
    built_in, recorder = (
        np.array([text.startswith(head) for text in texts], dtype=np.bool_) for head in (_BUILT, _RECORDER)
    )
    number = asked["_asked"].to_numpy().astype(np.int64)
    start, end, lane = (asked[c].to_numpy() for c in ("start", "end", "_lane"))
    tree = _Tree(rows, np.flatnonzero(rows.tells))
    node = tree.covering(start, end, lane)
    by_number = np.argsort(number)
    first, last = start[by_number], end[by_number]
    none = np.zeros(0, np.int64)
    settled = [_Settled(none, none, none, none, none)]
    while len(number):
        children = tree.children(start, end, node, lane, (first[number], last[number]))
        most, best, told = children.weigh()
        descend = (2 * most >= end - start) & (TELLING * (told - most) < end - start)
        cut = ~descend & (children.count > 0) & ((2 * told >= end - start) | (node < 0))
        stay = ~descend & ~cut
        inner, outer = children.cut(cut)
        of = outer.piece
        settled.append(_Settled(number[stay], lane[stay], start[stay], end[stay], node[stay]))
        settled.append(_Settled(number[of], lane[of], outer.start, outer.end, node[of]))
        number, lane, start, end, node = (
            np.concatenate(some)
            for some in (
                (number[descend], number[inner.piece]),
                (lane[descend], lane[inner.piece]),
                (start[descend], inner.start),
                (end[descend], inner.end),
                (best[descend], inner.row),
            )
        )
    every = _Settled(*(np.concatenate(some) for some in zip(*settled, strict=True)))
    row, around = (
        tree.rows_of(node)
        for node in (
            tree.by_recorder(tree.called(every.node, rows, inner_of), rows, built_in, recorder),
            tree.around(every.node, rows, users),
        )
    )
    # What no telling row covers is cut at the outermost of the others.
    bare = np.flatnonzero(every.node < 0)
    bare = bare[np.lexsort((every.start[bare], every.lane[bare]))]
    number, lane, start, end, node = (values[bare] for values in every)
    first = intervals.at_most(lane, end, rows.lane, rows.start)
    last = intervals.at_most(lane, start, rows.lane, rows.end - 1) - 1
    small = _Tree(rows, np.flatnonzero(first <= last))
    inner, outer = small.children(start, end, node, lane, None).cut(np.ones(len(number), np.bool_))
    found, covered = small.rows_of(inner.row), every.node >= 0
    nothing = np.full(len(outer.piece), -1, dtype=np.int64)
    return _Parts(
        *(
            np.concatenate(some)
            for some in (
                (every.number[covered], number[inner.piece], number[outer.piece]),
                (every.start[covered], inner.start, outer.start),
                (every.end[covered], inner.end, outer.end),
                (row[covered], found, nothing),
                (around[covered], np.where(users[rows.text[found]], found, -1), nothing),
            )
        )
    )


class _Settled(NamedTuple):
    """Parts that need no more cutting: the stretch, its lane, from when to when, the place in the tree."""

    number: Int
    lane: Int
    start: Int
    end: Int
    node: Int


@dataclass(frozen=True)
class _Pieces:
    """Pieces cut out of others: which they are of, from when to when, and the row that they belong to."""

    piece: Int
    start: Int
    end: Int
    row: Int


@dataclass(frozen=True)
class _Children:
    """For each piece the rows right below its row that tell something of it: one entry per pair."""

    start: Int
    end: Int
    piece: Int
    row: Int
    shared_from: Int
    shared_to: Int

    @property
    def count(self) -> Int:
        return np.bincount(self.piece, minlength=len(self.start))

    def weigh(self) -> tuple[Int, Int, Int]:
        """How much of each piece its largest child covers, which that is, and how much all of them cover."""
        shared = self.shared_to - self.shared_from
        most, best = np.zeros(len(self.start), np.int64), np.full(len(self.start), -1, np.int64)
        order = np.lexsort((-np.arange(len(shared)), shared, self.piece))
        most[self.piece[order]] = shared[order]
        best[self.piece[order]] = self.row[order]
        told = np.zeros(len(self.start), np.int64)
        np.add.at(told, self.piece, shared)
        return most, best, told

    def cut(self, which: Bool) -> tuple[_Pieces, _Pieces]:
        """The chosen pieces, cut at their children: what these cover, and what they leave."""
        mine = which[self.piece]
        piece, row, begin, stop = (a[mine] for a in (self.piece, self.row, self.shared_from, self.shared_to))
        chosen = np.flatnonzero(which)
        # Between the pieces' ends and their children, in turn: what is left begins where something stops.
        of = np.concatenate((chosen, piece))
        opens = np.concatenate((self.start[chosen], stop))
        closes = np.concatenate((begin, self.end[chosen]))
        by_open = np.lexsort((opens, of))
        closing_of = np.concatenate((piece, chosen))
        by_close = np.lexsort((closes, closing_of))
        left = (opens[by_open] < closes[by_close]).nonzero()[0]
        rest = _Pieces(of[by_open][left], opens[by_open][left], closes[by_close][left], of[by_open][left])
        return _Pieces(piece, begin, stop, row), rest


class _Tree:
    """Some of the rows, nested, with the children of each at hand."""

    def __init__(self, rows: _Rows, chosen: Int) -> None:
        start, end = rows.start[chosen], rows.end[chosen]
        forest = intervals.nest(start, end, rows.lane[chosen])
        # Rows of two kinds overlap by a little. What outlives the row that it began in goes on beside it.
        while len(out := np.flatnonzero(forest.end < end[forest.order])):
            here, cut = forest.order[out], forest.end[out]
            start, chosen = np.r_[start, cut], np.r_[chosen, chosen[here]]
            end = np.r_[end, end[here]]
            end[here] = cut
            forest = intervals.nest(start, end, rows.lane[chosen])
        self.rows, self.chosen, self.forest = rows, chosen, forest
        count = len(forest.start)
        self.count = count
        # Roots have their lane for a parent.
        parent = np.where(forest.parent >= 0, forest.parent, count + forest.group)
        self.order = np.argsort(parent, kind="stable")
        self.parent = parent[self.order]
        self.start, self.end = forest.start[self.order], forest.end[self.order]

    def rows_of(self, node: Int) -> Int:
        """The rows at these places of the tree; -1 for none."""
        if self.count == 0:
            return np.full(len(node), -1, dtype=np.int64)
        return np.where(node >= 0, self.chosen[self.forest.order[np.maximum(node, 0)]], -1)

    def around(self, node: Int, rows: _Rows, users: Bool) -> Int:
        """The deepest of the user's functions at or above each place, or -1."""
        forest = self.forest
        nearest = np.full(self.count + 1, -1, dtype=np.int64)  # the last is for what has no parent
        own = users[rows.text[self.chosen[forest.order]]] if self.count else np.zeros(0, np.bool_)
        order = np.argsort(forest.depth, kind="stable")
        levels = np.searchsorted(forest.depth[order], np.arange(int(forest.depth.max(initial=0)) + 2))
        for low, high in itertools.pairwise(levels.tolist()):
            at = order[low:high]
            nearest[at] = np.where(own[at], at, nearest[forest.parent[at]])
        return nearest[node]

    def by_recorder(self, node: Int, rows: _Rows, built_in: Bool, recorder: Bool) -> Int:
        """The places themselves; of built-in functions that the recorder calls itself the caller's."""
        if self.count == 0 or not recorder.any():
            return node
        text = rows.text[self.chosen[self.forest.order]]
        above = self.forest.parent[node]
        asks = (node >= 0) & (above >= 0) & built_in[text[node]] & recorder[text[above]]
        return np.where(asks, above, node)

    def called(self, node: Int, rows: _Rows, inner_of: Int) -> Int:
        """The places themselves; of inner functions that of the one in the same file which was called."""
        if self.count == 0:
            return node
        file = inner_of[rows.text[self.chosen[self.forest.order]]]
        found = node.copy()
        inside = np.flatnonzero((node >= 0) & (file[node] < 0))
        at = node[inside]
        while len(inside):
            above = self.forest.parent[at]
            same = (above >= 0) & (np.abs(file[above]) == np.abs(file[at]))
            inside, at = inside[same], above[same]
            known = file[at] > 0
            found[inside[known]] = at[known]
            inside, at = inside[~known], at[~known]
        return found

    def covering(self, start: Int, end: Int, lane: Int) -> Int:
        """The deepest row that covers each stretch as a whole, or -1."""
        at = intervals.innermost_at(self.forest, start, lane)
        short = np.flatnonzero(at >= 0)
        while len(short):
            short = short[self.forest.end[at[short]] < end[short]]
            at[short] = self.forest.parent[at[short]]
            short = short[at[short] >= 0]
        return at

    def children(
        self, start: Int, end: Int, node: Int, lane: Int, stretch: tuple[Int, Int] | None
    ) -> _Children:
        """The rows right below `node`, or the outermost where it is -1, that overlap each piece.

        With `stretch`, from when to when the stretch of each piece is, those that tell the piece and it: a
        row may stand in the tree because it tells another stretch.
        """
        key = np.where(node >= 0, node, self.count + lane)
        low = intervals.at_most(self.parent, self.end, key, start)
        high = intervals.at_most(self.parent, self.start, key, end - 1)
        piece, row = intervals.each_of(low, high)
        begin = np.maximum(self.start[row], start[piece])
        stop = np.minimum(self.end[row], end[piece])
        shared = stop - begin
        node = self.order[row].astype(np.int64)
        keep = shared > 0
        if stretch is not None:
            first, last = stretch[0][piece], stretch[1][piece]
            row = self.rows_of(node)
            told = np.minimum(self.rows.end[row], last) - np.maximum(self.rows.start[row], first)
            keep &= (shared * TELLING >= (end - start)[piece]) & (told * TELLING >= last - first)
        return _Children(start, end, piece[keep], node[keep], begin[keep], stop[keep])
