"""Cards of GPUs and of the links to their hosts: how much, how fast, and how sure that is.

Named cards hold specifications, published measurements and, where neither exists, assumptions; `status` says
which. A measured card replaces them: `lostflops bench links --card FILE` and `optimize.measure_link()` make
one for links, and a GPU's is a JSON object with the fields of `Gpu`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from lostflops.copies import link_card
from lostflops.copies.link import Link
from lostflops.errors import BadCard, NoSuchHardware, Refused, Unreadable
from lostflops.naming.cards import ACHIEVABLE, CARDS, HOST_LINKS, TERA, link_of

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Size = Annotated[int, msgspec.Meta(gt=0, le=1 << 60)]

# Of the peak, for whole 16-bit layers: 450 TFLOP/s on an H100 or H200 is assumed, and for others the same
# share; 200 TFLOP/s on an A100 is what torchtitan's published runs come to.
SUSTAINED = 0.455
KNOWN_RATES = {"a100": 200e12, "h100": 450e12, "h200": 450e12, "gh200": 450e12, "h800": 450e12}
USUAL = 0.75  # of the peak, where nobody measured it
TRAINED = 0.79  # of ACHIEVABLE: calibrated with published runs (docs/planning.md says which)
# FlashAttention 2 reaches 70 % of an A100's peak forward and 35 % of an H100's (FlashAttention 3's paper).
FLASH = {"a100": 0.70}
FLASH_USUAL = 0.35
LAYER_NS = {"nvidia": 55_000, "amd": 100_000}  # calibrated with gpt-fast's Llama-2-7B in 16 bits on one GPU
STREAMED = 0.83  # of the memory's bandwidth: 1,700 of 2,039 GB/s on an A100 (gpt-fast)
MIB = 1 << 20
SUSTAINED_RATE = "sustained rate"


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU. Rates are per second and direction; `network` is what it has between nodes."""

    name: str
    memory: Size  # bytes, as the driver shows them
    peak: Rate  # dense 16-bit FLOP/s
    sustained: Rate  # FLOP/s of whole 16-bit layers
    memory_bandwidth: Rate
    node_bandwidth: Rate
    network: Rate
    node: Annotated[int, msgspec.Meta(ge=1, le=100_000)]  # GPUs that `node_bandwidth` joins
    link: str  # the usual one to its host
    host_memory: Size  # bytes of host memory per GPU
    # How much faster than in 16 bits matrix products are in FP8 with one scale per tensor, casts included.
    fp8_gain: Annotated[float, msgspec.Meta(ge=1, le=10)] | None = None
    status: str = "given"
    assumed: tuple[str, ...] = ()  # what of it nobody measured
    rate: str = ""  # where `sustained` is from, if that is told apart
    # What matrix products and attention reach in a training job. Without them every operation runs at
    # `sustained`, and that rate then holds for all that a layer does.
    matmul: Rate | None = None
    attention: Rate | None = None
    # Nanoseconds of a decoding layer's kernels that read nothing: starts, small operations, gaps.
    layer_ns: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 55_000
    host: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None  # GPUs of a host, where not `node`

    @property
    def on_host(self) -> int:
        """GPUs of one host, on which a launcher starts processes."""
        return self.host or self.node

    @property
    def provenance(self) -> str:
        """Where its numbers are from."""
        *most, last = self.assumed or ("",)
        assumed = f"{', '.join(most)} and {last} assumed" if most else f"{last} assumed" if last else ""
        return "; ".join(filter(None, (self.status, assumed, self.rate)))


class LinkCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Host and GPU: bytes per second each way for large pinned copies, and the time to start one."""

    name: str
    out: Rate
    into: Rate
    latency_ns: Annotated[int, msgspec.Meta(ge=0, le=10**9)]
    migration: Rate  # bytes per second of unified memory on demand
    status: str

    @property
    def copies(self) -> Link:
        """The link alone, for what is simulated."""
        return Link(self.out, self.into, self.latency_ns)


def _gpu(
    name: str,
    node: tuple[int, float],
    network: float,
    host: float,
    link: str | None = None,
    on_host: int | None = None,
    more: str = "",
) -> Gpu:
    """A card, in its usual node: GPUs and GB/s within it, GB/s out of it, GB of host memory for a GPU."""
    card = CARDS[name]
    link = link or link_of(name)
    assert card.mib and card.bandwidth and link
    peak = card.tera["bf16"] * TERA
    return Gpu(
        name=name,
        memory=card.mib * MIB,
        peak=peak,
        sustained=KNOWN_RATES.get(name, SUSTAINED * peak),
        memory_bandwidth=card.bandwidth * TERA,
        node_bandwidth=node[1] * 1e9,
        network=network * 1e9,
        node=node[0],
        link=link,
        host_memory=int(host * 1e9),
        fp8_gain=1.5 if "fp8" in card.tera else None,
        status=f"specification{more}",
        assumed=(SUSTAINED_RATE, "network", "host memory", "FP8 gain"),
        matmul=peak * ACHIEVABLE.get(name, USUAL) * TRAINED,
        attention=peak * FLASH.get(name, FLASH_USUAL),
        layer_ns=LAYER_NS["amd" if name.startswith("mi") else "nvidia"],
        host=on_host,
    )


def one_rate(gpu: Gpu, sustained: float, source: str) -> Gpu:
    """The card with one rate for everything that a layer does, as a measurement of whole layers gives it.

    `source` says where the rate is from.
    """
    assumed = tuple(what for what in gpu.assumed if what != SUSTAINED_RATE)
    return msgspec.structs.replace(
        gpu, sustained=sustained, assumed=assumed, rate=source, matmul=None, attention=None
    )


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", (8, 300), 25, 128),
        _gpu("h100", (8, 450), 50, 256),
        _gpu("h800", (8, 200), 50, 256),
        _gpu("h20", (8, 450), 50, 256),
        _gpu("h200", (8, 450), 50, 256),
        _gpu("gh200", (4, 450), 50, 480),
        _gpu("b200", (8, 900), 50, 256),
        _gpu("b300", (8, 900), 100, 256),
        _gpu("gb200", (72, 900), 50, 240, link="c2c-gb200", on_host=4),
        _gpu("mi210", (4, 150), 12.5, 128),
        _gpu("mi250x", (8, 100), 12.5, 64, more=" of one of its two dies, which is a device"),
        _gpu("mi300x", (8, 448), 50, 256),
        _gpu("mi325x", (8, 448), 50, 256),
        _gpu("mi355x", (8, 537), 50, 256),
        _gpu("l4", (8, 25), 12.5, 64),
        _gpu("l40s", (8, 25), 25, 128),
        _gpu("a10", (4, 25), 12.5, 64),
        _gpu("rtx-4090", (8, 25), 12.5, 64),
    )
}

LINKS = {
    link.name: link
    for link in (
        LinkCard("pcie4", 25e9, HOST_LINKS["pcie4"], 10_000, 5e9, "assumed; 31.5 GB/s raw"),
        LinkCard(
            "pcie5",
            55e9,
            HOST_LINKS["pcie5"],
            10_000,
            10e9,
            "assumed; 63 GB/s raw, 55.7 published for pinned copies",
        ),
        LinkCard(
            "c2c", 297e9, HOST_LINKS["c2c"], 10_000, 100e9, "published for one GH200; migration assumed"
        ),
        LinkCard(
            "c2c-four", 170e9, 415e9, 10_000, 100e9, "published for four GH200 in a node; migration assumed"
        ),
        LinkCard(
            "c2c-gb200", 350e9, 350e9, 10_000, 100e9, "published outbound; inbound and migration assumed"
        ),
        LinkCard("c2c-gb300", 187e9, 190e9, 10_000, 100e9, "published for four GB300 in a node"),
        LinkCard("c2c-raw", 450e9, 450e9, 10_000, 450e9, "specification, not reached"),
    )
}


def gpu(name: str) -> Gpu:
    """The GPU called `name`, or the card in a JSON file."""
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return _card(path, Gpu)
    known = name.lower().replace("_", "-").removeprefix("rtx").lstrip("-")
    known = {"4090": "rtx-4090"}.get(known, known)
    if known not in GPUS:
        raise NoSuchHardware("GPU", name, GPUS)
    return GPUS[known]


def link(name: str) -> LinkCard:
    """The link called `name`, or a card in a JSON file: one of these, or a measured one."""
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        content = _read(path)
        try:
            head = msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadCard(path, str(error)) from error
        if head.get("kind") == "link card":
            return _measured_card(path, head)
        return _measured(path, head) if head.get("kind") == "links" else _card(path, LinkCard)
    if name.lower() not in LINKS:
        raise NoSuchHardware("link", name, LINKS)
    return LINKS[name.lower()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(path, error) from error


Card = TypeVar("Card", Gpu, LinkCard)


def _card(path: Path, kind: type[Card]) -> Card:
    try:
        return msgspec.json.decode(_read(path), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCard(path, str(error)) from error


def _measured_card(path: Path, card: Mapping[str, Any]) -> LinkCard:
    """Of a card of `measure_link` or `bench links --card`: pinned copies, and migration where measured."""
    try:
        found, (migration, basis) = link_card.link(card), link_card.migration(card)
        return msgspec.convert(
            {
                "name": path.name,
                "out": found.out,
                "into": found.into,
                "latency_ns": found.launch_ns,
                "migration": migration,
                "status": f"measured on {card.get('measured_on') or 'an unknown day'}"
                + ("" if basis == "measured" else "; migration assumed"),
            },
            LinkCard,
        )
    except (Refused, msgspec.ValidationError) as error:
        raise BadCard(path, error.reason if isinstance(error, Refused) else str(error)) from error


class _Line(msgspec.Struct):
    """What is read of one of the `cards` that `bench links` fits."""

    operation: str
    device: str | None = None
    host_memory: str | None = None
    both: bool | None = None
    bandwidth: Rate | None = None
    latency: Annotated[int, msgspec.Meta(ge=0, le=10**9)] | None = None


def _measured(path: Path, content: Mapping[str, Any]) -> LinkCard:
    """Of pinned copies in one direction at a time: each GPU's best memory node, and the slowest GPU."""
    try:
        lines = msgspec.convert(content.get("cards"), list[_Line])
    except msgspec.ValidationError as error:
        raise BadCard(path, str(error)) from error
    rates: list[float] = []
    for operation in ("device to host", "host to device"):
        best: dict[str, float] = {}
        for line in lines:
            pinned = line.host_memory == "pinned" and not line.both
            if line.operation == operation and pinned and line.bandwidth:
                device = line.device or ""
                best[device] = max(best.get(device, 0.0), line.bandwidth)
        if not best:
            raise BadCard(path, f"it has no pinned copies {operation}")
        rates.append(min(best.values()) * 1e9)
    latency = max(
        (line.latency for line in lines if line.latency and line.host_memory == "pinned"), default=0
    )
    out, into = rates
    migration = min(rates) * link_card.UNMEASURED_MIGRATION
    return LinkCard(path.name, out, into, latency, migration, "measured; migration assumed")
