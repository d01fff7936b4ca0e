"""Tell what kind of work a kernel, a host operator or a copy is, from its name.

Everything known about names is data: tables of patterns in `kernel_patterns.py` and `operator_patterns.py`,
and here for copies and collectives. Each pattern carries the family it proves, whose names these are, and
an example that a test classifies. What matches nothing is `unclassified`, and the page counts it; `other` is
work that we recognise and that fits no family.

What the families mean where it is not obvious:

- *copy* moves, sets or rearranges memory and changes types, and computes nothing: casts, concatenation,
  transposes, gathers and scatters by index, fills, writes to a key-value cache. Its precision is null.
- *reduction* is many values to one along a dimension; softmax and losses are such, unless the name says that
  it is the softmax of attention. Prefix sums are reductions too.
- *elementwise* is one value out per value in: activations, rotary embedding, dropout, random numbers.
- A fused kernel belongs to the part that decides its speed: a norm that also quantizes is a norm, an
  activation that also quantizes is elementwise, an all-reduce that also normalises is communication.
- *optimizer* includes what works on lists of tensors (`multi_tensor_apply`, `_foreach_…`): optimizer steps,
  gradient clipping, moving averages.
- What prepares or finishes the work of a library's kernel (offsets of a convolution, the sum of a split
  matrix product) belongs to that kernel's family.
- *other* is sorting and routing of tokens, sampling, pooling and resizing, views, bookkeeping of servers.

Precision is the type of the operands (of the first, when they differ), tensor cores mean matrix units of any
vendor. Names often do not say; then both are null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from lostflops import tables

from .kernel_patterns import KERNEL_PATTERNS
from .kernel_patterns.matrix.precision import PRECISION_RULES, TENSOR_CORE_SIGNS
from .kernel_patterns.pattern import KernelPattern
from .operator_patterns import NAMED_OPERATORS, OPERATOR_FAMILIES, REMAINING_OPERATORS
from .patterns import LONGEST, Recogniser, compiled

# What a communication operation does. 'unknown' when the name does not say: `SendRecv` carries all-to-all as
# well as point-to-point, `Generic` whatever was fused.
KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "receive",
    "send-receive",
    "dispatch",
    "combine",
    "notify",
    "layout",
    "barrier",
    "unknown",
)

FACTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String(),
    "family": tables.FAMILY,
    "precision": tables.PRECISION,
    "tensor_cores": pl.Boolean(),
    "library": pl.String(),
    "kind": pl.String(),
}
COPY_FACTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String(),
    "direction": tables.DIRECTION,
    "host_memory": tables.HOST_MEMORY_KIND,
}

Facts = tuple[str, str | None, bool | None, str | None, str | None]
_UNCLASSIFIED: Facts = ("unclassified", None, None, None, None)

KERNELS = Recogniser(KERNEL_PATTERNS)

# Kernels of these families may run on matrix units, of the next two nothing is known, the rest never do.
_MATRIX_FAMILIES = frozenset({"gemm", "attention", "convolution"})
_UNKNOWN_UNITS = frozenset({"other", "unclassified"})
# No plain unit computes in these.
_ONLY_IN_MATRIX_UNITS = frozenset({"tf32", "fp8", "fp4"})

# Nsight Systems writes template values as '(int)128', and the arguments of the host function around a functor
# are no element types: both would be taken for one.
_NO_ELEMENT_TYPE = re.compile(r"\((?:unsigned )?(?:int|long|bool|char)\)|\([^(){}]*\)(?=::)")


def kernel_facts(names: Iterable[str]) -> pl.DataFrame:
    """One row per distinct kernel name, with the columns `FACTS`.

    `library` and `kind` are given for communication only. A library is what the name says: RCCL's kernels
    bear NCCL's names and are called NCCL here.
    """
    distinct = list(dict.fromkeys(names))
    recognised = zip(distinct, KERNELS.first(distinct), strict=True)
    rows = [(name, *_kernel(name, pattern)) for name, pattern in recognised]
    return pl.DataFrame(rows, schema=FACTS, orient="row")


def _kernel(name: str, pattern: KernelPattern | None) -> Facts:
    if pattern is None:
        return _UNCLASSIFIED
    text = name[:LONGEST]
    precision = precision_of(text, pattern.precision)
    return pattern.family, precision, _tensor_cores(text, pattern, precision), pattern.library, pattern.kind


def precision_of(name: str, how: str) -> str | None:
    """The precision that `name` tells by the rules `how` of `PRECISION_RULES`; None when it does not."""
    rules = PRECISION_RULES.get(how)
    if rules is None:
        return None
    # What a template's function takes, as partial sums in fp32, is not what it multiplies.
    text = name.partition(">(")[0] if how == "matrix" else name
    text = _NO_ELEMENT_TYPE.sub("", text) if "(" in text else text
    for rule in rules:
        if found := compiled(rule.expression).search(text):
            return rule.spelling[found[1]]
    return None


def _tensor_cores(name: str, pattern: KernelPattern, precision: str | None) -> bool | None:
    if pattern.tensor_cores is not None or pattern.family in _UNKNOWN_UNITS:
        return pattern.tensor_cores
    if pattern.family not in _MATRIX_FAMILIES:
        return False
    for sign in TENSOR_CORE_SIGNS:
        if compiled(sign.expression).search(name):
            return sign.used
    return True if precision in _ONLY_IN_MATRIX_UNITS else None


NAMED = Recogniser(NAMED_OPERATORS)
REMAINING = Recogniser(REMAINING_OPERATORS)

WRAPPER = "autograd::engine::evaluate_function: "
# A node of autograd in C++, in which no Python runs: a function of the job's own has its class's name,
# without a number.
NODE = rf"^{WRAPPER}(?:(?:torch::autograd|std)::\S+|\w+Backward\d+)$"
# What Nsight Systems' ranges carry behind an operator's name: ', seq = 5, op_id = 7'.
_IDS = re.compile(r", (?:seq|op_id) = .*", re.DOTALL)
_BACKWARD = re.compile(r"_backward.*|Backward$", re.DOTALL)
_NODE_NUMBER = re.compile(r"(?<=Backward)\d+$")


def _key(name: str) -> str:
    """An operator's name without namespace, overload, underscores and case: 'aten::add_.Tensor' is 'add'."""
    return name.rpartition("::")[2].partition(".")[0].replace("_", "").lower()


_FAMILY_OF = {_key(name): family for family, names in OPERATOR_FAMILIES.items() for name in names.split()}


def operator_facts(names: Iterable[str]) -> pl.DataFrame:
    """One row per distinct name of a host operator, with the columns `FACTS`.

    The family is that of the operator's own work, without its children's. Names of operators do not tell
    precision or matrix units. For communication `kind` is null when the row is no collective by itself.
    """
    distinct = list(dict.fromkeys(names))
    texts = [operator_name(name) for name in distinct]
    named, kernels, remaining = NAMED.first(texts), KERNELS.first(texts), REMAINING.first(texts)
    rows: list[tuple[str, str, None, None, str | None, str | None]] = []
    for name, text, first, kernel, last in zip(distinct, texts, named, kernels, remaining, strict=True):
        if first is not None:
            kind = (collective_kind(text) or "unknown") if first.kind == "named" else first.kind
            rows.append((name, first.family, None, None, first.library, kind))
            continue
        node = _NODE_NUMBER.sub("", text)
        family = _FAMILY_OF.get(_key(node)) or _FAMILY_OF.get(_key(_BACKWARD.sub("", node)))
        pattern = kernel or last
        rows.append((name, family or (pattern.family if pattern else "unclassified"), None, None, None, None))
    return pl.DataFrame(rows, schema=FACTS, orient="row")


def operator_name(name: str) -> str:
    """The name without autograd's wrapper and without the ids that a range of Nsight Systems carries."""
    return _IDS.sub("", name[:LONGEST].removeprefix(WRAPPER))


# How process groups, operators, annotations and libraries spell collectives, without underscores and case.
_COLLECTIVES: dict[str, str] = {
    "all-reduce": """
        allreduce allreducecoalesced allreducesparse sparseallreduce alldispatchreduce oneshotallreduce
        twoshotallreduce multimemallreduce multimemoneshotallreduce oneshotallreducecopy
        oneshotallreduceout multimemoneshotallreduceout twoshotallreduceout
    """,
    "all-gather": """
        allgather allgatherbase allgathercoalesced allgatherintotensor allgatherintotensorcoalesced
        allgatherintotensorout multimemallgather multimemallgatherout allgatherv allgathertensor
    """,
    "reduce-scatter": """
        reducescatter reducescatterbase reducescattercoalesced reducescattertensor
        reducescattertensorcoalesced reducescatterv reducescatterblock reducescatterout
    """,
    "all-to-all": """
        alltoall alltoallbase alltoallv alltoallsingle alltoallw alltoallvdev alltoallvdev2d
    """,
    "broadcast": "broadcast broadcastoop bcast broadcastcoalesced",
    "reduce": "reduce reduceoop",
    "gather": "gather gatherv",
    "scatter": "scatter scatterv",
    "send": "send isend ssend rsend",
    "receive": "recv irecv recvanysource receive",
    "send-receive": "sendrecv batchisendirecv",
    "barrier": "barrier monitoredbarrier allreducebarrier",
    "unknown": "coalesced startcoalescing endcoalescing",
}
COLLECTIVE_OF = {spelling: kind for kind, text in _COLLECTIVES.items() for spelling in text.split()}

_LIBRARY_PREFIX = re.compile(r"^(?:nccl|mpi_?|pmpi_?)(?=[a-z])")


def collective_kind(text: str | None) -> str | None:
    """Which collective a name of c10d, a backend's annotation or a library's call means; null for none.

    >>> collective_kind("c10d::_reduce_scatter_base_"), collective_kind("wait")
    ('reduce-scatter', None)
    """
    if text is None or text.startswith("aten::"):
        return None
    word = _IDS.sub("", text[:LONGEST]).strip().partition(" ")[0]
    spelling = re.split(r":+", word)[-1].partition(".")[0].replace("_", "").lower()
    return COLLECTIVE_OF.get(spelling) or COLLECTIVE_OF.get(_LIBRARY_PREFIX.sub("", spelling))


@dataclass(frozen=True)
class CopyPattern:
    """Names of copies and what they say of the direction."""

    direction: str
    contains: tuple[str, ...]
    source: str
    example: str
    also: str = ""


COPY_PATTERNS: tuple[CopyPattern, ...] = (
    *(
        CopyPattern(
            direction,
            ("Unified ",),
            "Nsight Systems, managed memory",
            example,
            also=rf"Unified (?:Memory memcpy )?(?:{spellings})",
        )
        for direction, spellings, example in (
            ("migration to device", "Host-to-Device|HtoD", "[CUDA Unified Memory memcpy HtoD]"),
            ("migration to host", "Device-to-Host|DtoH", "[CUDA Unified Memory memcpy DtoH]"),
            ("migration between devices", "Device-to-Device|DtoD", "Unified Device-to-Device"),
        )
    ),
    CopyPattern(
        "memset",
        ("Memset", "memset", "FillBuffer", "fillBuffer", "MemoryFill"),
        "Kineto, Nsight Systems, ROCm, XPU",
        "Memset (Device)",
    ),
    CopyPattern(
        "peer to peer",
        ("PtoP", "Peer", "peer"),
        "Kineto, Nsight Systems, ROCm",
        "Memcpy PtoP (Device -> Device)",
    ),
    CopyPattern(
        "host to device",
        ("HtoD", "HtoA", "HostToDevice", "Host-to-Device", "HOST_TO_DEVICE", "H2D", "M2D"),
        "Kineto, Nsight Systems, roctracer, rocprofiler, XPU",
        "Memcpy HtoD (Pageable -> Device)",
    ),
    CopyPattern(
        "device to host",
        ("DtoH", "AtoH", "DeviceToHost", "Device-to-Host", "DEVICE_TO_HOST", "D2H", "D2M"),
        "Kineto, Nsight Systems, roctracer, rocprofiler, XPU",
        "CopyDeviceToHost",
    ),
    CopyPattern(
        "device to device",
        ("DtoD", "DtoA", "AtoD", "AtoA", "DeviceToDevice", "Device-to-Device", "DEVICE_TO_DEVICE", "D2D"),
        "Kineto, Nsight Systems, roctracer, rocprofiler, XPU",
        "Memcpy DtoD (Device -> Device)",
    ),
    CopyPattern(
        "host to host",
        ("HtoH", "HostToHost", "Host-to-Host", "HOST_TO_HOST", "H2H", "M2M"),
        "Kineto, Nsight Systems, roctracer, rocprofiler, XPU",
        "Memcpy HtoH (Pageable -> Pinned)",
    ),
)
COPIES = Recogniser(COPY_PATTERNS)

_ENDS = re.compile(r"\(([A-Za-z ]+?)(?: -> ([A-Za-z ]+))?\)")
_MEMORY = {
    "pageable": "pageable",
    "pinned": "pinned",
    "managed": "managed",
    "device": "none",
    "array": "none",
}
_MIGRATIONS = frozenset({"migration to device", "migration to host", "migration between devices"})
_ON_DEVICES = frozenset({"device to device", "peer to peer"})


def moves_by_itself() -> pl.Expr:
    """Whether a copy is of managed memory whose page was missing or had to go: nobody launched it."""
    migrates = pl.col("direction").cast(pl.String).str.starts_with("migration")
    return (migrates & pl.col("launch_start").is_null()).fill_null(False)


def copy_facts(names: Iterable[str]) -> pl.DataFrame:
    """One row per distinct name of a copy or memset: its direction and the kind of the host side's memory."""
    distinct = list(dict.fromkeys(names))
    rows: list[tuple[str, str, str]] = []
    for name, pattern in zip(distinct, COPIES.first(distinct), strict=True):
        direction = pattern.direction if pattern else "unknown"
        rows.append((name, direction, _host_memory(name[:LONGEST], direction)))
    return pl.DataFrame(rows, schema=COPY_FACTS, orient="row")


def _host_memory(name: str, direction: str) -> str:
    if direction in _MIGRATIONS:
        return "managed"
    found = _ENDS.search(name)
    ends = [_MEMORY.get(end.strip().lower(), "unknown") for end in found.groups() if end] if found else []
    host = {end for end in ends if end != "none"}
    if not host:  # the name tells only device memory, or nothing
        return "none" if ends or direction in _ON_DEVICES else "unknown"
    return host.pop() if len(host) == 1 else "unknown"
