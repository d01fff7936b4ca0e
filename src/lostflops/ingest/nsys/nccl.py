"""Find every communication operation of an Nsight Systems export, from the best evidence each one has.

1 the payload of NCCL's own advanced tracing; 2 the payload of an NCCL call, with its bytes; 3 the name of the
NCCL call or framework operator around the launch; 4 the kernel's name.

NCCL launches one kernel for all calls of a group, from `ncclGroupEnd`. So calls are gathered into episodes: a
call outside any group, or everything from the outermost group start to its end; a kernel belongs to the
episode that contains its launch. Payload fields are found by their names, since schema numbers change between
versions.
"""

from __future__ import annotations

import polars as pl

from lostflops.ingest.attribution import OperatorTree
from lostflops.ingest.part import PlaceInGroup
from lostflops.naming.classification import collective_kind
from lostflops.tables import FAMILY, NAME

PAYLOAD = {
    "communicator": r"nccl communicator id|communicator hash|comm ?hash|communicator id",
    "bytes": r"message size \[bytes\]|message size|bytes",  # the last until NCCL 2.22
    "size": r"no\. of ranks|number of ranks|nranks",
    "rank": r"rank",
    "peer": r"peer rank|peer",
    "device": r"cuda device",
    "operation": r"operation ?id",
    "count": r"count",
}
DTYPES = {
    "int8": 1, "char": 1, "uint8": 1, "int32": 4, "int": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "half": 2, "float32": 4, "float": 4, "float64": 8, "double": 8, "bfloat16": 2,
    "float8e4m3": 1, "float8e5m2": 1,
}  # fmt: skip
# A kernel that adds up is made for one type. Integers share kernels, whatever their sign.
ADDS_UP = (
    r"(?i)(?:all_?reduce|reduce_?scatter|reduce)_(?:\w+?_)?(?:sum|prod|minmax|min|max|premulsum|sumpostdiv)_"
)
OF_KERNELS = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "f8e4m3": "float8e4m3",
    "f8e5m2": "float8e5m2", "half": "float16", "float": "float32", "double": "float64",
    "__nv_bfloat16": "bfloat16",
}  # fmt: skip
ANNOTATIONS = ("nccl:", "rccl:")
OPERATORS = ("c10d::", "_c10d_functional::", "c10d_functional::")
COLUMNS = (
    "start", "end", "device", "arrival", "kind", "library", "group", "group_size", "peer", "bytes_in",
    "bytes_out", "dtype", "sequence", "evidence", "stream", "correlation", "name",
)  # fmt: skip


def payloads(calls: pl.DataFrame) -> pl.DataFrame:
    """NCCL's calls with what their payloads say; the fields are null where no payload was exported."""
    dtype = (
        pl.col("payload").str.extract(r'(?i)"data ?type"\s*:\s*"(?:nccl)?([a-z0-9_]+)"').str.to_lowercase()
    )
    dtype = dtype.str.replace_all("_", "")
    calls = calls.with_columns(_number(field, names) for field, names in PAYLOAD.items()).with_columns(
        pl.col("rank", "peer", "size", "device", "bytes", "count", "operation").cast(pl.Int64, strict=False),
        dtype=pl.when(dtype.is_in(list(DTYPES))).then(dtype),
    )
    element = pl.col("dtype").replace_strict(DTYPES, default=None, return_dtype=pl.Int64)
    # Only the call that makes a communicator says how many ranks it has.
    sizes = dict(communicators(calls).select("communicator", "size").rows())
    return calls.with_columns(
        bytes=pl.coalesce(
            "bytes", pl.when(pl.col("count").is_between(0, 2**50)).then(pl.col("count") * element)
        ),
        size=pl.coalesce(
            "size", pl.col("communicator").replace_strict(sizes, default=None, return_dtype=pl.Int64)
        ),
    ).drop("payload", "count")


def _number(field: str, names: str) -> pl.Expr:
    """A number from JSON text, by the name of its field; written with or without quotes and thousands
    commas."""
    found = pl.col("payload").str.extract(rf'(?i)"(?:{names})"\s*:\s*"?(-?(?:0x[0-9a-f]+|[0-9,]+))')
    return found.str.replace_all(",", "").alias(field)


def _kinds(names: list[str]) -> dict[str, str]:
    """What kind of communication each name means, for those that mean one kind."""
    kinds = {name: collective_kind(name) for name in names}
    return {name: kind for name, kind in kinds.items() if kind is not None and kind != "unknown"}


def communicators(calls: pl.DataFrame) -> pl.DataFrame:
    """The communicators that a process joined: communicator, size, rank, device."""
    return (
        calls.filter(pl.col("communicator").is_not_null(), pl.col("size") > 0, pl.col("rank").is_not_null())
        .filter(pl.col("rank") < pl.col("size"))
        .select("communicator", "size", "rank", "device")
        .unique(maintain_order=True)
    )


def called(communicator: str) -> str:
    """What a communicator is called as a group."""
    return f"NCCL communicator {communicator}"


def places(joined: pl.DataFrame, calls: pl.DataFrame) -> dict[str, PlaceInGroup]:
    """What a rank says of each communicator that it joined or used: `joined` are those that it joined."""
    own: dict[str, set[tuple[int, int | None]]] = {}
    for communicator, size, place in joined.select("communicator", "size", "rank").iter_rows():
        own.setdefault(communicator, set()).add((place, size))
    kinds = _kinds(calls["name"].unique().to_list())
    kind = pl.col("name").replace_strict(kinds, default=None, return_dtype=pl.String)

    def peers(of: str) -> pl.Expr:
        return pl.col("peer").filter(kind == of, pl.col("peer") >= 0).unique()

    used = (
        calls.filter(pl.col("communicator").is_not_null())
        .group_by("communicator")
        .agg(
            peers("send").alias("sends"),
            peers("receive").alias("receives"),
            # Where NCCL is traced on its own, each call says who makes it.
            pl.col("rank").filter(pl.col("rank") >= 0).unique().alias("ranks"),
        )
    )
    found: dict[str, PlaceInGroup] = {}
    for communicator, sends, receives, ranks in used.sort("communicator").iter_rows():
        stated = own.get(communicator) or {(rank, None) for rank in ranks}
        place, size = next(iter(stated)) if len(stated) == 1 else (None, None)
        found[called(communicator)] = PlaceInGroup(place, size, frozenset(sends), frozenset(receives))
    return found


def episodes(calls: pl.DataFrame) -> pl.DataFrame:
    """Groups of calls that share a launch: thread, start, end, kind, communicator, bytes, …

    `kind` is null where the calls of a group are of several kinds.
    """
    group = pl.col("name").replace_strict(
        {"ncclGroupStart": 1, "ncclGroupEnd": -1}, default=0, return_dtype=pl.Int64
    )
    names = calls["name"].unique().to_list()
    kinds = _kinds(names)
    ordered = (
        calls.with_columns(
            _group=group,
            _kind=pl.col("name").replace_strict(kinds, default=None, return_dtype=pl.String),
        )
        .filter((pl.col("_group") != 0) | pl.col("_kind").is_not_null())
        # A group and its first call may begin in one nanosecond: they stand in the order of the export.
        .sort("thread", "start", maintain_order=True)
        .with_columns(_level=pl.col("_group").cum_sum().over("thread"))
    )
    # A window that begins inside a group shows its end without its start: the level is counted from its
    # lowest.
    ordered = ordered.with_columns(
        _level=pl.col("_level") - pl.min_horizontal(0, pl.col("_level").cum_min().over("thread"))
    ).with_columns(
        _before=pl.col("_level").shift(1, fill_value=0).over("thread"),
        # A call may make others: until NCCL 2.22 a send is a group of its own.
        _in_call=_within("end"),
        _kind=pl.when(~_within(pl.when(pl.col("_kind").is_not_null()).then("end"))).then("_kind"),
    )
    one = pl.col("_kind").drop_nulls()
    sent = pl.col("bytes").filter(pl.col("_kind") == "send").sum()
    received = pl.col("bytes").filter(pl.col("_kind") == "receive").sum()
    described = pl.col("bytes").filter(pl.col("_kind").is_not_null())
    sized = (described.len() > 0) & described.is_not_null().all()
    in_parts = sized & one.is_in(["send", "receive"]).all()
    peers = pl.col("peer").filter(pl.col("_kind").is_not_null())

    def only(column: str) -> pl.Expr:
        values = pl.col(column).drop_nulls().unique()
        return pl.when(values.len() == 1).then(values.first()).alias(column)

    return (
        ordered.with_columns(_episode=((pl.col("_before") == 0) & ~pl.col("_in_call")).cum_sum())
        .group_by("_episode", "thread", maintain_order=True)
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            only("communicator"),
            only("size"),
            only("dtype"),
            only("operation"),
            kind=pl.when(one.n_unique() == 1)
            .then(one.first())
            .when(one.is_in(["send", "receive"]).all() & (one.n_unique() == 2))
            .then(pl.lit("send-receive")),
            peer=pl.when((one.n_unique() == 1) & peers.is_not_null().all() & (peers.n_unique() == 1)).then(
                peers.first()
            ),
            message=pl.when(sized).then(described.sum()),
            sent=pl.when(in_parts).then(sent),
            received=pl.when(in_parts).then(received),
        )
        .drop("_episode")
    )


def _within(ends: pl.Expr | str) -> pl.Expr:
    """Whether a row begins before one of its thread's earlier ones, of those with an end, is over."""
    ends = pl.col(ends) if isinstance(ends, str) else ends
    latest = ends.cum_max().forward_fill().shift(1).over("thread")
    return (pl.col("start") < latest).fill_null(False)


class Surroundings:
    """What the host was doing around a launch: NCCL's calls, a framework's annotation, a framework's
    operator."""

    def __init__(
        self, calls: pl.DataFrame, ranges: pl.DataFrame | None, operators: pl.DataFrame | None
    ) -> None:
        self._episodes = episodes(calls).sort("start", maintain_order=True)
        self._annotations = _marks(ranges, ANNOTATIONS)
        self._operators = _marks(operators, OPERATORS)

    def of(self, work: pl.DataFrame) -> pl.DataFrame:
        """`work` with what surrounds each row's launch; null where nothing does."""
        rows = work.with_columns(
            kind_annotated=_kind_at(self._annotations, work), kind_operator=_kind_at(self._operators, work)
        ).with_row_index("_row")
        launched = rows.filter(pl.col("launch_start").is_not_null(), pl.col("thread").is_not_null())
        around = (
            launched.select("_row", "thread", "launch_start")
            .sort("launch_start", maintain_order=True)
            .join_asof(
                self._episodes.rename({"start": "_from", "end": "_to", "kind": "kind_called"}),
                left_on="launch_start",
                right_on="_from",
                by="thread",
                strategy="backward",
                check_sortedness=False,
            )
            .filter(pl.col("launch_start") < pl.col("_to"))
            # Of several kernels that one group launched, none carried all of its bytes.
            .with_columns(_alone=pl.len().over("thread", "_from") == 1)
            .with_columns(pl.when("_alone").then(pl.col(c)).alias(c) for c in ("message", "sent", "received"))
            .drop("thread", "launch_start", "_from", "_to", "_alone")
        )
        return rows.join(around, on="_row", how="left", maintain_order="left").drop("_row")


def _marks(rows: pl.DataFrame | None, prefixes: tuple[str, ...]) -> OperatorTree | None:
    """Rows whose names begin so and say what kind of communication they are."""
    if rows is None:
        return None
    names = [
        n for n in rows["name"].unique().cast(pl.String).to_list() if n is not None and n.startswith(prefixes)
    ]
    kinds = _kinds(names)
    text = pl.col("name").cast(pl.String)
    found = rows.filter(text.is_in(list(kinds)), pl.col("thread").is_not_null())
    if found.is_empty():
        return None
    return OperatorTree(
        found.with_columns(kind=text.replace_strict(kinds, default=None, return_dtype=pl.String))
    )


def _kind_at(tree: OperatorTree | None, work: pl.DataFrame) -> pl.Series:
    if tree is None:
        return pl.Series([None] * work.height, dtype=pl.String)
    return tree.operators["kind"].gather(tree.at(work["launch_start"], work["thread"]))


def on_kernels(kernels: pl.DataFrame, around: Surroundings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Kernels with communication marked, and the collectives that they carried.

    `kernels` know their launch, and from their names `family`, `library` and `kind`.
    """
    numbered = kernels.with_row_index("_number")
    unexplained = pl.col("family").is_in(["unclassified", "other"])
    named = pl.col("family") == "communication"
    rows = around.of(numbered.filter(named | unexplained))
    # Work that its name does not explain is communication where a communication operator launched it, or
    # where its stream serves nothing else.
    launcher = pl.col("operator").cast(pl.String) == "record_param_comms"
    by_host = unexplained & (pl.col("kind_annotated").is_not_null() | launcher.fill_null(False))
    unknown = pl.col("family") == "unclassified"
    place = ["device", "stream"]
    elsewhere = numbered.filter(~named & (pl.col("family") != "unclassified")).select(place).unique()
    lone = rows.select(place).unique().join(elsewhere, on=place, how="anti", nulls_equal=True)
    rows = (
        rows.with_columns(_talks=named | by_host)
        .join(lone.with_columns(_lone=True), on=place, how="left", maintain_order="left", nulls_equal=True)
        .with_columns(
            _by_stream=pl.col("_talks").any().over(place) & pl.col("_lone").fill_null(False) & unknown
        )
        .with_columns(pl.col("_by_stream") & ~pl.col("_talks"))
        .filter(pl.col("_talks") | pl.col("_by_stream"))
    )
    talks = numbered["_number"].is_in(rows["_number"].implode())
    marked = kernels.with_columns(
        family=pl.when(talks).then(pl.lit("communication", dtype=FAMILY)).otherwise("family")
    ).drop("library", "kind")
    carried = rows.with_columns(
        library=pl.col("library").fill_null("unknown"),
        kind_named=pl.when(pl.col("kind") != "unknown").then("kind"),
    )
    return marked, _described(carried, pl.when("_by_stream").then(5).otherwise(4))


def on_copies(copies: pl.DataFrame, around: Surroundings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Copies between devices that a collective made the copy engine do, marked and as collectives."""
    numbered = copies.with_row_index("_number")
    rows = around.of(numbered.filter(pl.col("direction") == "peer to peer"))
    said = pl.any_horizontal(pl.col("kind_annotated", "kind_operator", "kind_called").is_not_null())
    rows = rows.filter(said)
    marked = copies.with_columns(communication=numbered["_number"].is_in(rows["_number"].implode()))
    carried = rows.with_columns(
        library=pl.lit("copy engine"),
        kind_named=pl.lit(None, dtype=pl.String),
        _copied=pl.col("bytes"),
    )
    described = _described(carried, pl.lit(4))
    return marked, described.with_columns(bytes_in=carried["_copied"], bytes_out=carried["_copied"])


def _element_by_name() -> pl.Expr:
    """The element type in a kernel's name."""
    types = "|".join(OF_KERNELS)
    found = (
        pl.col("name")
        .cast(pl.String)
        .str.extract(rf"{ADDS_UP}({types})(?:_(?:ring|tree|nvls|coll|pat)|\W|$)")
    )
    return found.replace_strict(OF_KERNELS, default=None, return_dtype=pl.String)


def _described(rows: pl.DataFrame, least: pl.Expr) -> pl.DataFrame:
    """One collective per row, its kind and sizes from the best evidence; `least` where only the work
    itself tells."""
    # What was called as sends and receives may be more than that: a framework's annotation knows.
    kind = pl.coalesce("kind_annotated", "kind_operator", "kind_called", "kind_named", pl.lit("unknown"))
    whole = pl.col("message") * pl.col("size")
    payload = pl.col("message").is_not_null()
    host = pl.any_horizontal(pl.col("kind_annotated", "kind_operator", "kind_called").is_not_null())
    evidence = (
        pl.when(payload & pl.col("operation").is_not_null()).then(1).when(payload).then(2).when(host).then(3)
    )
    by_parts = pl.col("kind").is_in(["all-to-all", "send-receive"])
    # A call for an all-to-all says what it sends to one rank; frameworks send and receive the parts.
    at_once = (pl.col("kind") == "all-to-all") & (pl.col("kind_called") == "all-to-all")
    same = pl.col("kind").is_in(["all-reduce", "broadcast", "reduce", "barrier"])
    return (
        rows.with_columns(kind=kind, evidence=evidence.otherwise(least).cast(pl.Int8))
        .with_columns(
            arrival="start",
            group=pl.lit(called("")) + pl.col("communicator"),
            group_size="size",
            peer=pl.when(pl.col("kind").is_in(["send", "receive"])).then("peer"),
            sequence="operation",
            dtype=pl.coalesce("dtype", _element_by_name()),
            bytes_in=pl.when(same | pl.col("kind").is_in(["all-gather", "send"]))
            .then("message")
            .when(pl.col("kind") == "reduce-scatter")
            .then(whole)
            .when(at_once)
            .then(whole)
            .when(by_parts)
            .then("sent"),
            bytes_out=pl.when(same | pl.col("kind").is_in(["reduce-scatter", "receive"]))
            .then("message")
            .when(pl.col("kind") == "all-gather")
            .then(whole)
            .when(at_once)
            .then(whole)
            .when(by_parts)
            .then("received"),
        )
        .select(pl.col(c).cast(NAME) if c == "name" else pl.col(c) for c in COLUMNS)
    )
