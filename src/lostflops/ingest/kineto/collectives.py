"""Find every communication operation of a Kineto trace, from the best evidence each one has.

1 metadata on the kernel or the enclosing `record_param_comms`; 2 an annotation as of `nccl:` or `gloo:` with
shapes; 3 the enclosing c10d operator; 4 the kernel's name; 5 a stream that only communication uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import polars as pl

from lostflops.ingest.attribution import OperatorTree
from lostflops.ingest.kineto.columns import MOST_BYTES, number
from lostflops.ingest.kineto.event_texts import UNDECODABLE
from lostflops.intervals.matching import PAIR
from lostflops.naming.classification import collective_kind
from lostflops.store.trace import Quality
from lostflops.tables import FAMILY, NAME

DTYPE_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "c10::half": 2,
    "bfloat16": 2, "c10::bfloat16": 2, "long": 8, "long int": 8, "int64": 8, "int": 4, "int32": 4, "short": 2,
    "short int": 2, "int16": 2, "byte": 1, "unsigned char": 1, "uint8": 1, "char": 1, "signed char": 1,
    "int8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "c10::float8_e4m3fnuz": 1, "c10::float8_e5m2fnuz": 1,
    "complexfloat": 8, "complexdouble": 16, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip

# Annotations of process groups' backends, and whose they are: on tensors of a device, and of the host.
ON_DEVICE = ("nccl:", "ucc:")
ON_HOST = {"gloo:": "gloo", "mpi:": "MPI", "ucc:": "UCC"}
# What gloo runs for a c10d operator, where it is not the operation of the same name.
GLOO_RUNS = {"reduce-scatter": "all-reduce"}
MONITORED = "c10d::monitored_barrier_"
THREADS = 2  # of each group of gloo, on one network
PARAMETERS = {
    "collective": pl.String,
    "in_elements": pl.Int64,
    "out_elements": pl.Int64,
    "dtype": pl.String,
    "group_size": pl.Int64,
    "group_name": pl.String,
    "group_ranks": pl.String,
    "group_description": pl.String,
    "sequence": pl.Int64,
    "source_rank": pl.Int64,
    "destination_rank": pl.Int64,
}
COLUMNS = (
    "start", "end", "device", "arrival", "kind", "library", "group", "group_size", "peer", "bytes_in",
    "bytes_out", "dtype", "sequence", "evidence", "stream", "correlation", "name",
)  # fmt: skip


@dataclass
class Communication:
    """What the search looks at: the rank's tables, and the distinct texts their codes stand for."""

    kernels: pl.DataFrame | None
    copies: pl.DataFrame | None
    operators: pl.DataFrame | None
    ranges: pl.DataFrame | None
    parameters: pl.DataFrame
    shapes: pl.Series
    types: pl.Series
    concrete: pl.Series
    groups: list[dict[str, Any]]
    rank: int | None


@dataclass
class Found:
    """Kernels and copies with communication marked, and the collectives they carry."""

    kernels: pl.DataFrame | None
    copies: pl.DataFrame | None
    collectives: pl.DataFrame | None
    quality: list[Quality] = field(default_factory=list[Quality])


def communication(given: Communication) -> Found:
    """All communication of one rank, on the device and on the host (gloo, MPI, UCC)."""
    meta = _metadata(given)
    kernels, copies = given.kernels, given.copies
    carried: list[pl.DataFrame] = []
    if kernels is not None:
        kernels, device = _on_kernels(kernels, given, meta)
        carried.append(device)
    if copies is not None:
        copies, engine = _on_copies(copies, given, meta)
        carried.append(engine)
    if kernels is None and copies is None:
        carried.append(_on_host(given))
    rows = [c.select(COLUMNS) for c in carried if c.height]
    return Found(kernels, copies, pl.concat(rows).sort("start", maintain_order=True) if rows else None)


def described(parameters: list[tuple[Any, ...]]) -> pl.DataFrame:
    """What operations say of themselves, a row each."""
    columns = zip(*parameters, strict=True) if parameters else [()] * len(PARAMETERS)
    return pl.DataFrame(dict(zip(PARAMETERS, columns, strict=True)), schema=PARAMETERS)


def groups_named(parameters: pl.DataFrame, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The process groups that the file's head lists, and those that only operations tell of.

    Torch lists the groups that exist when the profiler starts, and some writers of traces none: then each
    operation still says what its group is called, what it is for and who is in it.
    """
    if parameters.is_empty():
        return [*listed]
    have = {group["name"] for group in listed}
    told = (
        parameters.select("group_name", "group_description", "group_ranks")
        .filter(pl.col("group_description").fill_null("") != "", ~pl.col("group_name").is_in(list(have)))
        .unique("group_name", keep="first", maintain_order=True)
    )
    return [
        *listed,
        *(
            {
                "name": name,
                "description": description,
                "ranks": [r for r in _items(ranks) if isinstance(r, int) and 0 <= r < 2**31],
            }
            for name, description, ranks in told.iter_rows()
        ),
    ]


def _metadata(given: Communication) -> pl.DataFrame:
    """One row per distinct description of a collective, its group and sizes worked out."""
    frame = given.parameters.with_row_index("meta")
    known = {g["name"]: g["ranks"] for g in given.groups if g["ranks"]}
    size = pl.col("dtype").str.to_lowercase().replace_strict(DTYPE_BYTES, default=None, return_dtype=pl.Int64)
    names = frame["collective"].unique().to_list()
    kinds = {name: collective_kind(name) for name in names}
    listed = (
        pl.when(pl.col("group_ranks").str.contains("...", literal=True) | (pl.col("group_ranks") == ""))
        .then(None)
        .otherwise(pl.col("group_ranks"))
    )
    from_config = pl.col("group_name").replace_strict(
        {name: str(ranks) for name, ranks in known.items()}, default=None, return_dtype=pl.String
    )
    ranks = pl.coalesce(listed, from_config)
    group = (
        pl.when(pl.col("group_name").is_null())
        .then(None)
        .otherwise(
            pl.concat_str(pl.col("group_name"), pl.lit(" "), ranks.fill_null("")).str.strip_chars_end()
        )
    )
    peer = pl.when(pl.col("kind").is_in(["send", "receive"])).then(
        pl.when(pl.col("kind") == "send").then("destination_rank").otherwise("source_rank")
    )
    return (
        frame.with_columns(
            kind=pl.col("collective").replace_strict(kinds, default=None, return_dtype=pl.String)
        )
        .with_columns(
            pl.col("meta").cast(pl.Int64),
            group=group,
            peer=peer,
            # What is coalesced has its sizes in its parts.
            bytes_in=pl.when(pl.col("kind") != "unknown").then(pl.col("in_elements") * size),
            bytes_out=pl.when(pl.col("kind") != "unknown").then(pl.col("out_elements") * size),
        )
        .select("meta", "kind", "group", "group_size", "peer", "bytes_in", "bytes_out", "dtype", "sequence")
    )


class _Enclosing:
    """Finds the communication row of the host that encloses a launch: metadata, annotation, operator."""

    def __init__(self, given: Communication, meta: pl.DataFrame) -> None:
        operators, ranges = given.operators, given.ranges
        self.parameters = self.annotations = self.operators = self.described = None
        if operators is not None:
            text = _texts(operators["name"])
            described = operators.filter(pl.col("meta").is_not_null())
            if described.height:
                described = described.join(meta, on="meta", how="left", maintain_order="left")
                described = described.filter(pl.col("kind").is_not_null())
                self.parameters = OperatorTree(described) if described.height else None
                self.described = described
            kinds = {t: collective_kind(t) for t in text if t.startswith(("c10d::", "_c10d_functional::"))}
            kinds = {t: k for t, k in kinds.items() if k is not None}
            found = operators.filter(pl.col("name").cast(pl.String).is_in(list(kinds)))
            if found.height:
                found = found.with_columns(kind=_mapped(found["name"], kinds))
                self.operators = OperatorTree(found)
        if ranges is not None:
            self.annotations = _annotations(given, ranges, ON_DEVICE)

    def describe(self, work: pl.DataFrame) -> pl.DataFrame:
        """For each row launched at launch_start on thread: kind, group, sizes and evidence (null: none)."""
        when, thread = work["launch_start"], work["thread"]
        told: list[pl.Series | pl.Expr] = []
        wanted = ["kind", "group", "group_size", "peer", "bytes_in", "bytes_out", "dtype", "sequence"]
        for tree, columns, suffix in (
            (self.parameters, wanted, "_1"),
            (self.annotations, ["kind", "bytes_in", "dtype"], "_2"),
            (self.operators, ["kind"], "_3"),
        ):
            if tree is None:
                told += [pl.lit(None, dtype=_KINDS_OF[c]).alias(c + suffix) for c in columns]
            else:
                rows = tree.at(when, thread)
                told += [tree.operators[c].gather(rows).cast(_KINDS_OF[c]).alias(c + suffix) for c in columns]
        return work.with_columns(told)


_KINDS_OF = {
    "kind": pl.String, "group": pl.String, "group_size": pl.Int64, "peer": pl.Int64, "bytes_in": pl.Int64,
    "bytes_out": pl.Int64, "dtype": pl.String, "sequence": pl.Int64,
}  # fmt: skip


def _texts(names: pl.Series) -> list[str]:
    return [t for t in names.unique().cast(pl.String).to_list() if t is not None]


def _mapped(names: pl.Series, mapping: dict[str, Any]) -> pl.Series:
    return names.cast(pl.String).replace_strict(mapping, default=None, return_dtype=pl.String)


def _annotations(
    given: Communication, ranges: pl.DataFrame, prefixes: tuple[str, ...]
) -> OperatorTree | None:
    names = [t for t in _texts(ranges["name"]) if t.startswith(prefixes)]
    kinds = {t: k for t in names if (k := collective_kind(t)) is not None}
    found = ranges.filter(pl.col("name").cast(pl.String).is_in(list(kinds)))
    if found.is_empty():
        return None
    found = found.with_columns(kind=_mapped(found["name"], kinds))
    return OperatorTree(_sized(found, "shapes", "types", given))


def _sized(rows: pl.DataFrame, shapes: str, types: str, given: Communication) -> pl.DataFrame:
    """Rows with bytes_in and dtype from the first tensor of their recorded shapes and types."""
    pairs = rows.select(shapes, types).unique()
    known = [(s, t, *_first_tensor(given.shapes[s], given.types[t])) for s, t in pairs.iter_rows()]
    sizes = pl.DataFrame(
        known,
        schema={shapes: pl.UInt32, types: pl.UInt32, "bytes_in": pl.Int64, "dtype": pl.String},
        orient="row",
    )
    return rows.drop("bytes_in", "dtype", strict=False).join(
        sizes, on=[shapes, types], how="left", maintain_order="left"
    )


def _items(text: str) -> list[Any]:
    """A JSON list; empty for anything else."""
    try:
        value: Any = msgspec.json.decode(text or "[]")
    except UNDECODABLE:
        return []
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _first_tensor(shapes: str, types: str) -> tuple[int | None, str | None]:
    """Bytes and type of the first tensor; inside lists of tensors, of the first there."""
    return _tensor(_items(shapes), _items(types))


def _tensor(dims: list[Any], kinds: list[Any]) -> tuple[int | None, str | None]:
    while dims and isinstance(dims[0], list) and dims[0] and isinstance(dims[0][0], list):
        dims = cast("list[Any]", dims[0])
    first = cast("object", dims[0]) if dims else None
    kind = kinds[0] if kinds and isinstance(kinds[0], str) else None
    total = DTYPE_BYTES.get(kind.lower()) if kind else None
    if total is None or not isinstance(first, list):  # an empty one is of a tensor of one number
        return None, kind if total else None
    for extent in first:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(extent, int) or extent < 0:
            return None, kind
        total *= extent
    return (total if total < MOST_BYTES else None), kind


def _messages_in_one_launch(rows: pl.DataFrame, described: pl.DataFrame | None) -> pl.DataFrame:
    """Launches that nothing explains, after sends and receives that launched nothing: they carry those.

    `batch_isend_irecv` describes each message where it is asked for, and launches all of them afterwards. Of
    a single one all is known; of several, that they are messages, and in which group.
    """
    if described is None:
        return rows
    of_one = ["peer", "bytes_in", "bytes_out", "sequence"]
    told = ["group", "group_size", "dtype", *of_one]
    asked = described.select("thread", "end", "kind", *told, at="start").sort("thread", "at")
    launched = rows.select("_row", "thread", unknown=pl.col("kind") == "unknown", at="launch_start")
    launched = launched.drop_nulls(["thread", "at"]).sort("thread", "at", "_row")
    keys: dict[str, Any] = {"on": "at", "by": "thread", "check_sortedness": False}
    within = launched.select("thread", "at").join_asof(
        asked.select("thread", "at", "end", began="at"), **keys
    )
    launching = within.filter(pl.col("at") < pl.col("end")).select("thread", at="began")
    later = asked.join(launching, on=["thread", "at"], how="anti", maintain_order="left")
    later = later.with_columns(nth=pl.int_range(pl.len()).over("thread"))
    before = launched.join_asof(later.rename({c: f"{c}_asked" for c in ("kind", *told)}), **keys)
    many = pl.col("nth") - pl.col("nth").shift(1).over("thread").fill_null(-1)
    here = before.with_columns(many=pl.when(pl.col("nth").is_not_null()).then(many)).filter(
        "unknown", pl.col("many") > 0, pl.col("kind_asked").is_in(["send", "receive"])
    )
    alone = pl.col("many") == 1
    carried = here.select(
        "_row",
        *(pl.col(f"{c}_asked") for c in told if c not in of_one),
        *(pl.when(alone).then(f"{c}_asked").alias(f"{c}_asked") for c in of_one),
        together=pl.when(alone).then("kind_asked").otherwise(pl.lit("send-receive")),
    )
    found = rows.join(carried, on="_row", how="left", maintain_order="left")
    return found.with_columns(
        pl.coalesce("together", "kind").alias("kind"),
        *(pl.coalesce(c, f"{c}_asked").alias(c) for c in told),
    )


def _known(column: str) -> pl.Expr:
    """A kind, where it says more than that several operations are coalesced."""
    return pl.when(pl.col(column) != "unknown").then(pl.col(column))


def _on_kernels(
    kernels: pl.DataFrame, given: Communication, meta: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    kernels = kernels.with_row_index("_row")
    # A kernel that metadata calls a collective is one, whatever its name; so is one that only its enclosing
    # communication operator can explain, and one without a family on a stream that serves nothing else.
    described = kernels.join(
        meta.rename({c: f"{c}_0" for c in meta.columns if c != "meta"}),
        on="meta",
        how="left",
        maintain_order="left",
    )
    known = pl.col("family") == "communication"
    by_metadata = pl.col("kind_0").is_not_null()
    launcher = pl.col("operator").cast(pl.String)
    by_operator = pl.col("family").is_in(["unclassified", "other"]) & launcher.is_in(["record_param_comms"])
    described = described.with_columns(_talks=known | by_metadata | by_operator.fill_null(False))
    streams = described.group_by("device", "stream").agg(
        _only=(pl.col("_talks") | (pl.col("family") == "unclassified")).all() & pl.col("_talks").any()
    )
    described = described.join(
        streams, on=["device", "stream"], how="left", maintain_order="left", nulls_equal=True
    )
    by_stream = pl.col("_only") & (pl.col("family") == "unclassified") & ~pl.col("_talks")
    talking = described.with_columns(_by_stream=by_stream).filter(pl.col("_talks") | pl.col("_by_stream"))
    marked = kernels["_row"].is_in(talking["_row"].implode())
    kernels = kernels.with_columns(
        family=pl.when(marked).then(pl.lit("communication", dtype=FAMILY)).otherwise("family")
    ).drop("_row", "meta", "library", "kind")
    if talking.is_empty():
        return kernels, pl.DataFrame()
    enclosing = _Enclosing(given, meta)
    rows = enclosing.describe(talking)
    name_kind = _known("kind")
    evidence = (
        pl.when(pl.col("kind_0").is_not_null() | pl.col("kind_1").is_not_null())
        .then(1)
        .when(pl.col("kind_2").is_not_null())
        .then(2)
        .when(pl.col("kind_3").is_not_null())
        .then(3)
        .when(pl.col("_by_stream"))
        .then(5)
        .otherwise(4)
    )
    # DeepEP and the like say in their name more than the operator around them does.
    rows = rows.with_columns(
        evidence=evidence.cast(pl.Int8),
        # Several operations in one launch are "coalesced": what they are, their kernel's name may say.
        kind=pl.coalesce(*(_known(f"kind_{n}") for n in range(4)), name_kind, pl.lit("unknown")),
        library=pl.col("library").fill_null("unknown"),
        group=pl.coalesce("group_0", "group_1"),
        group_size=pl.coalesce("group_size_0", "group_size_1"),
        peer=pl.coalesce("peer_0", "peer_1"),
        bytes_in=pl.coalesce("bytes_in_0", "bytes_in_1", "bytes_in_2"),
        bytes_out=pl.coalesce("bytes_out_0", "bytes_out_1"),
        dtype=pl.coalesce("dtype_0", "dtype_1", "dtype_2"),
        sequence=pl.coalesce("sequence_0", "sequence_1"),
        arrival=pl.col("start"),
    )
    rows = _messages_in_one_launch(rows, enclosing.described)
    return kernels, rows.select(COLUMNS).cast({"name": NAME})


def _on_copies(
    copies: pl.DataFrame, given: Communication, meta: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Copies between devices that a collective made its copy engine do."""
    copies = copies.with_row_index("_row")
    peer = copies.filter(pl.col("direction").cast(pl.String) == "peer to peer")
    rows = pl.DataFrame()
    if peer.height:
        described = _Enclosing(given, meta).describe(peer)
        rows = described.filter(
            pl.col("kind_1").is_not_null() | pl.col("kind_2").is_not_null() | pl.col("kind_3").is_not_null()
        )
    marked = rows["_row"] if rows.height else pl.Series([], dtype=pl.UInt32)
    copies = copies.with_columns(communication=copies["_row"].is_in(marked.cast(pl.UInt32).implode())).drop(
        "_row"
    )
    if rows.is_empty():
        return copies, pl.DataFrame()
    return copies, rows.with_columns(
        kind=pl.coalesce("kind_1", "kind_2", "kind_3"),
        library=pl.lit("copy engine"),
        group="group_1",
        group_size="group_size_1",
        peer="peer_1",
        bytes_in=pl.col("bytes"),
        bytes_out=pl.col("bytes"),
        dtype=pl.coalesce("dtype_1", "dtype_2"),
        sequence="sequence_1",
        evidence=pl.lit(1, dtype=pl.Int8),
        arrival="start",
    ).select(COLUMNS)


def _on_host(given: Communication) -> pl.DataFrame:
    """gloo, MPI and UCC: an operator on the calling thread, an annotation where and when the work was done.

    They are paired in order within a kind, which is how these serve them; a rank is ready when it calls the
    operator, and done when the annotation ends.
    """
    if given.ranges is None:
        return pl.DataFrame()
    tree = _annotations(given, given.ranges, tuple(ON_HOST))
    if tree is None:
        return pl.DataFrame()
    done = (
        _barriers_for_messages(tree.operators, given)
        .sort("start", maintain_order=True)
        .with_columns(_runs=pl.col("kind"), correlation=pl.lit(None, dtype=pl.Int64))
        .with_columns(_nth=pl.int_range(pl.len()).over("_runs"))
    )
    gloo = tree.operators["name"].cast(pl.String).str.starts_with("gloo:").any()
    called = _calls(given, GLOO_RUNS if gloo else {})
    if called is not None:
        counts = called.group_by("_runs").len().join(done.group_by("_runs").len(), on="_runs", suffix="_done")
        equal = counts.filter(pl.col("len") == pl.col("len_done"))["_runs"].to_list()
        pairs = called.filter(pl.col("_runs").is_in(equal)).select(
            "_runs", "_nth", _called="start", _kind="kind", _in="bytes_in", _out="bytes_out", _dtype="dtype",
            _peer="peer",
        )  # fmt: skip
    else:
        pairs = pl.DataFrame(
            schema={"_runs": pl.String, "_nth": pl.Int64, "_called": pl.Int64, "_kind": pl.String,
                    "_in": pl.Int64, "_out": pl.Int64, "_dtype": pl.String, "_peer": pl.Int64}
        )  # fmt: skip
    rows = done.join(pairs, on=["_runs", "_nth"], how="left", maintain_order="left")
    # A pair in which the work began before it was asked for is no pair.
    good = pl.col("_called").is_not_null() & (pl.col("_called") <= pl.col("start"))
    group, size = _groups_of(rows["thread"], given.groups if gloo else _larger(given.groups))
    return rows.with_columns(
        start=pl.when(good).then("_called").otherwise("start"),
        arrival=pl.when(good).then("_called").otherwise("start"),
        kind=pl.when(good).then("_kind").otherwise("kind"),
        library=pl.col("name").cast(pl.String).str.extract(r"^(\w+:)").replace_strict(ON_HOST, default=None),
        group=group,
        group_size=size,
        peer=pl.when(good).then("_peer"),
        bytes_in=pl.when(good).then(pl.coalesce("_in", "bytes_in")).otherwise("bytes_in"),
        bytes_out=pl.when(good).then("_out"),
        dtype=pl.when(good).then(pl.coalesce("_dtype", "dtype")).otherwise("dtype"),
        sequence=pl.lit(None, dtype=pl.Int64),
        evidence=pl.when(good).then(pl.lit(2)).otherwise(pl.lit(3)).cast(pl.Int8),
        stream="thread",
        device=pl.lit(None, dtype=pl.Int64),
    )  # fmt: skip


def _barriers_for_messages(done: pl.DataFrame, given: Communication) -> pl.DataFrame:
    """The annotations, with one for each `monitored_barrier` in place of the messages that it is made of.

    The first rank of the group is told by each of the others that it is there, and then tells them.
    """
    operators = given.operators
    if operators is None:
        return done
    barriers = operators.filter(pl.col("name").cast(pl.String) == MONITORED)
    if barriers.is_empty():
        return done
    inside = OperatorTree(barriers).at(done["start"], done["thread"]).is_not_null()
    messages = pl.Series(inside) & done["kind"].is_in(list(PAIR))
    name = done["name"].dtype
    made = barriers.select(
        "start", "end", "thread", name=pl.lit("gloo:barrier").cast(name), kind=pl.lit("barrier")
    )
    return pl.concat([done.filter(~messages), made], how="diagonal_relaxed")


def _larger(groups: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [group for group in groups if len(group["ranks"]) > 1]


def _groups_of(threads: pl.Series, groups: Sequence[Mapping[str, Any]]) -> tuple[pl.Series, pl.Series]:
    """Group and size of the operations on these threads; null where several could be theirs.

    Each group of gloo works on threads of its own, made with the group: once all of them work, they are the
    groups' in order. A group of one rank has little to do and may do nothing.
    """
    every = threads.unique().sort()
    larger = _larger(groups)
    told: list[Mapping[str, Any] | None] = [None] * len(every)
    if len(larger) == 1 and (len(groups) == 1 or len(every) <= THREADS):
        told = [larger[0]] * len(every)
    elif len(every) == THREADS * len(groups):
        told = [groups[place // THREADS] for place in range(len(every))]
    names = [None if group is None else f"{group['name']} {group['ranks']}" for group in told]
    sizes = [None if group is None else len(group["ranks"]) for group in told]
    return (
        threads.replace_strict(every, pl.Series(names, dtype=pl.String), return_dtype=pl.String),
        threads.replace_strict(every, pl.Series(sizes, dtype=pl.Int64), return_dtype=pl.Int64),
    )


def _calls(given: Communication, runs: Mapping[str, str]) -> pl.DataFrame | None:
    """What the c10d operators ask for, and what a backend that `runs` some as others makes of each."""
    operators = given.operators
    if operators is None:
        return None
    kinds = {t: k for t in _texts(operators["name"]) if t.startswith("c10d::") and (k := collective_kind(t))}
    found = operators.filter(pl.col("name").cast(pl.String).is_in(list(kinds)))
    if found.is_empty():
        return None
    found = found.with_columns(kind=_mapped(found["name"], kinds)).sort("start", maintain_order=True)
    pairs = found.select("name", "shape_code", "type_code", "concrete", "kind").unique()
    sizes = [
        (
            n,
            s,
            t,
            c,
            *_buffers(str(k), given.shapes[s], given.types[t]),
            _peer(str(k), given.concrete[c], given),
        )
        for n, s, t, c, k in pairs.iter_rows()
    ]
    schema = {
        "name": NAME, "shape_code": pl.UInt32, "type_code": pl.UInt32, "concrete": pl.UInt32,
        "bytes_in": pl.Int64, "bytes_out": pl.Int64, "dtype": pl.String, "peer": pl.Int64,
    }  # fmt: skip
    sized = pl.DataFrame(sizes, schema=schema, orient="row")
    found = found.join(
        sized, on=["name", "shape_code", "type_code", "concrete"], how="left", maintain_order="left"
    )
    return found.with_columns(_runs=pl.col("kind").replace(dict(runs))).with_columns(
        _nth=pl.int_range(pl.len()).over("_runs")
    )


def _buffers(kind: str, shapes: str, types: str) -> tuple[int | None, int | None, str | None]:
    """Bytes of the input and of the output buffer, and the element type, of a c10d operator.

    In the `_base` forms the first argument is the output and the second the input.
    """
    dims, kinds = _items(shapes), _items(types)
    if not dims or not kinds:
        return None, None, None
    first, dtype = _tensor(dims, kinds)
    if kinds[0] == "TensorList":
        # The types of a list's tensors are not recorded, nor are they all of one.
        return None, None, None
    if kind in ("all-gather", "reduce-scatter", "all-to-all") and len(dims) > 1 and isinstance(kinds[1], str):
        return _tensor(dims[1:], kinds[1:])[0], first, dtype
    return first, first, dtype


def _peer(kind: str, concrete: str, given: Communication) -> int | None:
    """The other side's global rank: gloo writes its place in the group, so the group must be certain."""
    if kind not in ("send", "receive") or given.rank is None:
        return None
    values = _items(concrete)
    place = number(values[2]) if len(values) > 2 else None
    if place is None:
        return None
    sides = {
        g["ranks"][place]
        for g in given.groups
        if place < len(g["ranks"]) > 1 and g["ranks"][place] != given.rank
    }
    pipeline = {
        g["ranks"][place]
        for g in given.groups
        if "pp" in g["description"].lower() and place < len(g["ranks"])
    }
    chosen = pipeline if len(pipeline) == 1 else sides
    return chosen.pop() if len(chosen) == 1 else None
