"""Inference as planned: what a model and its cache take, the time to the first token and between tokens.

A rank holds its tensor-parallel share; ranks beyond it are replicas. Where weights do not fit they can be
streamed from host memory, which bounds every token by the link.

A token reads every weight that its batch reaches, at the share of the memory's bandwidth that large reads
get, and each layer starts some kernels and waits for its tensor ranks twice, however little it computes. The
constants are gpt-fast's, on A100 with CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from lostflops.errors import BadOption
from lostflops.plan.hardware import STREAMED, Gpu, LinkCard
from lostflops.plan.shape import Shape, Weight, elements
from lostflops.plan.train import layout
from lostflops.plan.train.job import CONTEXT
from lostflops.plan.train.layer_time import attention_operations, bandwidth, seconds
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.static_memory import Lora, MemoryPart, base_bytes

from . import kv_cache

OTHER_NUMBERS = "check the answers"
MANY = 1 << 24  # sequences at once; nobody asks for more
CHUNK = 8192  # tokens that a server's prefill takes at a time
ALL_REDUCE = 5e-6  # seconds until tensor ranks on one node have added a few kilobytes (calibrated)
ACROSS = 30e-6  # and over the network (assumed)
UNPACKING = {
    16: 1.0,
    8: 0.85,
    4: 0.73,
}  # of the bandwidth that weights of so many bits are read with (calibrated)
PICKED = 0.6  # of it for experts that are picked by their index (calibrated)


@dataclass(frozen=True)
class Serving:
    """What is asked: `batch` sequences at once, each of `prompt` tokens and `generated` more.

    `streamed` bytes of the weights lie in host memory and are fetched for every pass.
    """

    shape: Shape
    gpu: Gpu
    link: LinkCard
    layout: Layout
    prompt: int
    generated: int
    batch: int = 1
    weight_bits: int = 16
    cache_bits: int = 16
    streamed: int = 0
    group: int = 0  # 4-bit weights that share a 16-bit scale and zero; 0 is NF4 with scales of scales


@dataclass(frozen=True)
class Pace:
    """Nanoseconds of one pass, and the resource that bounds it."""

    name: str
    ns: int
    bound: str


class Served:
    """Predicted memory and time of one way to serve."""

    def __init__(self, serving: Serving) -> None:
        layout.check(serving.shape, serving.layout, serving.prompt)
        if not serving.shape.causal:
            raise BadOption(
                f"{serving.shape.name} is an encoder, which generates no tokens.",
                "plan a model that does, or its training with `plan train`.",
            )
        self.serving = serving

    @property
    def weight_bytes(self) -> int:
        """One rank's weights, streamed or not."""
        s = self.serving
        return _weights(s.shape, s.layout, s.weight_bits, s.group)

    @cached_property
    def cache_per_token(self) -> int:
        """Bytes of one token's keys and values on a rank."""
        s = self.serving
        whole = kv_cache.per_token(s.shape) * s.cache_bits // 16
        # Latent attention keeps one compressed state, which every tensor rank needs whole.
        return whole if s.shape.latent else -(-whole // min(s.layout.tensor, s.shape.kv_heads))

    def cached(self, tokens: int) -> int:
        """Bytes of one sequence's keys and values on a rank: layers with a window keep no more than that."""
        shape = self.serving.shape
        return -(-self.cache_per_token * shape.seen(tokens) // shape.layers)

    @property
    def cached_tokens(self) -> int:
        return self.serving.batch * (self.serving.prompt + self.serving.generated)

    @cached_property
    def parts(self) -> tuple[MemoryPart, ...]:
        """Memory by component."""
        s = self.serving
        tokens = min(CHUNK, s.batch * s.prompt)
        per_token = 2 * (2 * s.shape.hidden + s.shape.query_width + s.shape.value_width)
        routed = s.shape.expert_width * s.shape.experts_per_token + s.shape.shared_width
        width = max(s.shape.feed_forward, routed)
        working = tokens * (per_token + 3 * 2 * width // s.layout.tensor)
        logits = 6 * s.batch * s.shape.vocabulary // s.layout.tensor
        cached = f"{self.cached_tokens:,} tokens of {self.cache_per_token:,} bytes"
        if s.shape.window and s.prompt + s.generated > s.shape.window:
            cached += f"; {s.shape.windowed} of {s.shape.layers} layers keep the last {s.shape.window:,}"
        streamed = f", {s.streamed / 1e9:.2f} GB more in host memory" if s.streamed else ""
        return (
            MemoryPart("weights", self.weight_bytes - s.streamed, f"{s.weight_bits} bits{streamed}"),
            MemoryPart(
                "KV cache",
                s.batch * self.cached(s.prompt + s.generated),
                cached,
            ),
            MemoryPart("working memory", working + logits, f"{tokens:,} tokens at a time, and logits"),
            MemoryPart("CUDA context and libraries", CONTEXT, "assumed"),
        )

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def excess(self) -> int:
        return max(0, self.bytes - self.serving.gpu.memory)

    @property
    def fits(self) -> bool:
        return not self.excess and self.serving.streamed <= self.serving.gpu.host_memory

    @property
    def largest_batch(self) -> int:
        """How many sequences at once fit, 0 where not even one does."""
        low, high = 0, 1
        while high < MANY and Served(replace(self.serving, batch=high)).fits:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = Served(replace(self.serving, batch=middle)).fits
            low, high = (middle, high) if fits else (low, middle)
        return low

    def _pace(self, name: str, compute: float, memory: float, tokens: int, waits: float) -> Pace:
        s = self.serving
        ranks = s.layout.tensor
        hidden = 2 * 2 * tokens * s.shape.hidden * s.shape.layers
        network = hidden * 2 * (ranks - 1) / ranks / bandwidth(s.gpu, ranks, s.layout.gpus)
        if ranks > 1:
            network += 2 * s.shape.layers * (ALL_REDUCE if ranks <= s.gpu.node else ACROSS)
        times = {
            "compute": compute / ranks,
            "memory": memory / (STREAMED * s.gpu.memory_bandwidth) + waits,
            "link": s.streamed / s.link.into,
        }
        bound = max(times, key=lambda resource: times[resource])
        bound = "network" if network > times[bound] else bound
        return Pace(name, round((max(times.values()) + network) * 1e9), bound)

    @cached_property
    def paces(self) -> tuple[Pace, Pace]:
        """The prompts of the whole batch, and one token for each of its sequences."""
        s = self.serving
        layers = range(s.shape.layers)
        head = s.shape.vocabulary * s.shape.hidden
        active = sum(s.shape.active(number) for number in layers)
        square = s.shape.layers * attention_operations(s.shape, s.prompt, s.batch)
        first = seconds(2 * active * s.batch * s.prompt + 2 * head * s.batch, square, s.gpu, fp8=False)
        longest = s.prompt + s.generated
        cached = s.batch * self.cached(longest)
        context = 2 * (s.shape.query_width + s.shape.value_width) * s.batch * s.shape.seen(longest)
        each = seconds(2 * (active + head) * s.batch, context, s.gpu, fp8=False)
        waits = s.gpu.layer_ns / 1e9 * s.shape.layers
        return (
            self._pace("prompts", first, self.read(s.batch * s.prompt), s.batch * s.prompt, 0.0),
            self._pace("each token", each, self.read(s.batch) + cached, s.batch, waits),
        )

    def read(self, tokens: int) -> float:
        """Bytes of weights that a pass of `tokens` reads, as if all came at full bandwidth.

        Of an embedding table only the tokens' rows are read, and of the experts those that a token is given
        to: of E experts, k for each of b tokens, E (1 - (1 - k / E)^b) are touched.
        """
        s = self.serving
        weights = list(layout.stage_weights(s.shape, s.layout, 0))
        experts = _bytes([w for w in weights if w.expert], s.weight_bits, s.group)
        others = [w for w in weights if not w.expert and (w.name != "embedding" or s.shape.tied)]
        plain = _bytes(others, s.weight_bits, s.group)
        picked = experts * min(touched(s.shape, tokens) / PICKED, 1.0)  # all of them come in one piece
        return (plain + picked) / UNPACKING[s.weight_bits]

    @property
    def tokens_per_second(self) -> float:
        """Generated per second by all replicas, the prompts' time included."""
        s = self.serving
        prompts, each = self.paces
        replicas = s.layout.gpus // s.layout.tensor
        return replicas * s.batch * s.generated / (prompts.ns + s.generated * each.ns) * 1e9

    @property
    def host_bytes(self) -> int:
        return self.serving.streamed


def touched(shape: Shape, tokens: int) -> float:
    """The share of a layer's experts that at least one of `tokens` is given to, each equally often."""
    if not shape.experts:
        return 0.0
    return 1 - (1 - shape.experts_per_token / shape.experts) ** tokens


@lru_cache(maxsize=64)
def _weights(shape: Shape, here: Layout, bits: int, group: int) -> int:
    return _bytes(list(layout.stage_weights(shape, here, 0)), bits, group)


def _bytes(weights: list[Weight], bits: int, group: int) -> int:
    if bits == 16:
        return 2 * elements(weights)
    if bits == 8:  # embedding and head stay as they are
        return elements(weights) + elements([w for w in weights if w.name in ("embedding", "head")])
    if group:
        kept = [w for w in weights if w.name == "embedding" or not w.inputs]
        some = elements(weights) - elements(kept)
        return 2 * elements(kept) + some // 2 + 4 * -(-some // group)
    return base_bytes(weights, Lora(base_bits=4))


@dataclass(frozen=True)
class ServingOption:
    """A way to serve, by its change in words."""

    name: str
    served: Served
    remark: str = ""

    @property
    def apply(self) -> tuple[str, ...]:
        """The function that makes the change, if a call does."""
        return ("lostflops.optimize.stream_weights",) if self.name == "stream weights" else ()


def _in_bits(serving: Serving, bits: int) -> Serving:
    """Fewer bits a weight; of streamed weights as large a part is streamed as before."""
    fewer = replace(serving, weight_bits=bits)
    streamed = serving.streamed * Served(fewer).weight_bytes // Served(serving).weight_bytes
    return replace(fewer, streamed=streamed)


def options(serving: Serving) -> tuple[ServingOption, ...]:
    """As asked, and the ways to need less, each alone."""
    asked = Served(serving)
    found = [ServingOption("as asked", asked)]
    if serving.weight_bits > 8:
        found.append(ServingOption("8-bit weights", Served(_in_bits(serving, 8)), OTHER_NUMBERS))
    if serving.weight_bits > 4:
        found.append(ServingOption("4-bit weights", Served(_in_bits(serving, 4)), OTHER_NUMBERS))
    if serving.cache_bits > 8:
        found.append(ServingOption("8-bit KV cache", Served(replace(serving, cache_bits=8)), OTHER_NUMBERS))
    batch = asked.largest_batch
    if batch and batch != serving.batch:
        found.append(
            ServingOption(f"batch {batch}", Served(replace(serving, batch=batch)), "the largest that fits")
        )
    if asked.excess and not serving.streamed:
        moved = min(asked.excess, asked.weight_bytes)
        found.append(
            ServingOption(
                "stream weights", Served(replace(serving, streamed=moved)), "every pass waits for the link"
            )
        )
    return tuple(found)


def verdict(found: tuple[ServingOption, ...]) -> str:
    """What to do, in a sentence."""
    asked = found[0].served
    if asked.fits:
        room = asked.serving.gpu.memory - asked.bytes
        return (
            f"It fits as it is, with {room / 1e9:.1f} GB to spare; up to {asked.largest_batch:,} sequences."
        )
    fitting = [option for option in found if option.served.fits]
    if not fitting:
        return "Nothing that was tried makes it fit: more GPUs with `--tensor` would."
    best = max(fitting, key=lambda option: option.served.tokens_per_second)
    said = f"It does not fit as it is: {asked.excess / 1e9:,.1f} GB over. The fastest way: {best.name}"
    same = [option for option in fitting if option.remark != OTHER_NUMBERS]
    if best.remark != OTHER_NUMBERS or not same:
        return f"{said}."
    kept = max(same, key=lambda option: option.served.tokens_per_second)
    return f"{said}; without other numbers in the model: {kept.name}."
