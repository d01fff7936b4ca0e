"""One training job as planned: memory by component at its fullest moment, and the time of its step.

The peak is a maximum over time. It is looked for on every pipeline stage at four moments: the loss, the
backward's first and last layer, and the update. What is summed at the worst of them is the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from lostflops.errors import BadOption
from lostflops.plan.hardware import Gpu, LinkCard
from lostflops.plan.modules import adapted, modules, quantisable
from lostflops.plan.shape import Shape, elements

from . import activation_memory, exchanged, fragments, layer_time, layout, static_memory
from .activation_memory import Checkpointing, Kernels
from .layout import Layout
from .static_memory import Lora, MemoryPart, Optimizer
from .timeline import SETS, free_layers, simulate

CUDA_CONTEXT = "CUDA context and libraries"
CPU_ADAM = 28  # bytes that it reads and writes per parameter: fp32 weights and moments, 16-bit at both ends
# Bytes per second and GPU of that: over 4 s for Llama-2-7B on four A100 (DeepSpeed's ZenFlow).
CPU_ADAM_RATE = 12e9
SLOTS = 3  # streamed layers that are on the GPU: in use, arriving, and the next
CONTEXT = 1 << 30  # of CUDA, NCCL and the libraries, outside the allocator (assumed)


@dataclass(frozen=True)
class Training:
    """What is asked. `microbatch` is in sequences; a step has `microbatches` of them per data-parallel rank.

    `offloaded` layers of a stage keep in host memory what they would keep on the GPU: all they save, or
    their inputs where layers are checkpointed.
    """

    shape: Shape
    gpu: Gpu
    link: LinkCard
    layout: Layout
    optimizer: Optimizer
    sequence: int
    microbatch: int = 1
    microbatches: int = 1
    lora: Lora | None = None
    checkpointing: Checkpointing = "none"
    offloaded: int = 0
    streamed: bool = False  # frozen layers lie in host memory and are fetched for every pass
    fused_loss: bool = False
    fp8: bool = False
    fine: bool = False  # FP8 with a scale per row or block instead of one per tensor
    unified: bool = False
    kernels: Literal["eager", "fused"] = "eager"
    attention: Literal["flash", "scores"] = "flash"  # whether the scores of attention are kept
    optimizer_away: bool = False  # its states lie in host memory, where the CPU updates them
    overlapped: bool = True  # gradients are reduced beside the backward, not behind it
    async_tensor: bool = False  # tensor ranks exchange pieces while they multiply others

    def __post_init__(self) -> None:
        """Adapters stand beside the modules that the model has."""
        if self.lora:
            object.__setattr__(self, "lora", adapted(self.shape, self.lora))

    @property
    def executed(self) -> Kernels:
        """How its layers are executed."""
        return activation_memory.kernels_of(
            self.shape, self.layout, self.sequence, fused=self.kernels == "fused",
            scores=self.attention == "scores", sequences=self.microbatch,
        )  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """A point in time at which memory may be fullest, on one pipeline stage."""

    name: str
    stage: int
    parts: tuple[MemoryPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class TimePart:
    """A line of the step's time: nanoseconds, and the resource that bounds it."""

    name: str
    ns: int
    bound: str


def check(training: Training) -> None:
    """Raise an error in words for what cannot be."""
    layout.check(training.shape, training.layout, training.sequence)
    if training.fp8 and training.gpu.fp8_gain is None:
        raise BadOption(f"A {training.gpu.name} has no FP8 units.", "leave out `--fp8`.")
    if training.streamed and (training.lora is None or training.layout.stage >= 3):
        raise BadOption(
            "Only frozen weights that every rank has whole can be streamed.",
            "choose `--method lora` and a `--sharding` below zero-3, or leave out `--stream-frozen`.",
        )
    if training.optimizer_away and training.optimizer.master + training.optimizer.moments != 12:
        raise BadOption(
            "Only Adam with fp32 master weights and moments is updated on the CPU.",
            "choose `--optimizer adam`, or leave out `--offload-optimizer`.",
        )
    if training.lora and not training.lora.modules:
        has = [member for _, members in modules(training.shape) for member in members]
        raise BadOption(
            f"{training.shape.name} has none of the projections {', '.join(training.lora.targets)}.",
            f"choose from {', '.join(has)}.",
        )
    if training.lora and training.lora.base_bits == 4 and not quantisable(training.shape):
        raise BadOption(
            f"{training.shape.name} stays in 16 bits: bitsandbytes quantises no class of its matrices.",
            "choose `--method lora`.",
        )


class Prediction:
    """Predicted memory and time of one training job."""

    def __init__(self, training: Training) -> None:
        check(training)
        self.training = training

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Every moment of every stage, fullest first."""
        stages = range(self.training.layout.pipeline)
        found = [moment for stage in stages for moment in _moments(self.training, stage)]
        return tuple(sorted(found, key=lambda moment: -moment.bytes))

    @property
    def peak(self) -> Moment:
        return self.moments[0]

    @property
    def reserved(self) -> int:
        """Bytes that PyTorch's allocator holds at least: all but the context, which is not its own.

        Gradients that were freed before the peak are in it: between weights and states they leave holes
        that are smaller than activations, which nothing fills. So are a forward's temporaries at the loss,
        and what PyTorch's pipeline takes for all microbatches.
        """
        return max(
            sum(part.bytes for part in moment.parts if part.name != CUDA_CONTEXT)
            + self._freed(moment)
            + fragments.bytes_of(self.training, moment.name, local_tokens(self.training))
            + self._pipelined(moment.stage)
            for moment in self.moments
        )

    def _pipelined(self, stage: int) -> int:
        """What PyTorch's pipeline takes and another one need not: it is in no moment."""
        t, tokens = self.training, local_tokens(self.training)
        if not t.layout.by_pytorch or t.layout.pipeline == 1:
            return 0
        return fragments.joined(t, stage, tokens) + fragments.received(t, stage, tokens, _alive(t, stage))

    def _freed(self, moment: Moment) -> int:
        if any(part.name == "gradients" for part in moment.parts):
            return 0
        return sum(p.bytes for p in _static(self.training, moment.stage) if p.name == "gradients")

    @property
    def excess(self) -> int:
        """Bytes by which the peak is over the GPU's memory."""
        return max(0, self.peak.bytes - self.training.gpu.memory)

    @cached_property
    def host_bytes(self) -> int:
        """Host memory per GPU that offloading or unified memory takes."""
        stages = range(self.training.layout.pipeline)
        away = max(
            _offloaded_bytes(self.training, stage)
            + _streamed_bytes(self.training, stage)
            + _states_away(self.training, stage)
            for stage in stages
        )
        return away + (self.excess if self.training.unified else 0)

    @property
    def fits(self) -> bool:
        on_gpu = self.excess == 0 or self.training.unified
        return on_gpu and self.host_bytes <= self.training.gpu.host_memory

    @cached_property
    def spans(self) -> tuple[TimePart, ...]:
        """The step's time, in parts that add up to it."""
        return tuple(_spans(self.training, self.excess))

    @property
    def step_ns(self) -> int:
        return sum(span.ns for span in self.spans)

    @property
    def bound(self) -> str:
        """The resource that bounds most of the step."""
        by: dict[str, int] = {}
        for span in self.spans:
            by[span.bound] = by.get(span.bound, 0) + span.ns
        return max(by, key=lambda name: by[name])

    @property
    def attention_share(self) -> float:
        """Of a layer's operations forward, what attention takes: it grows with the sequence."""
        work = exchanged.work(self.training, self.training.shape.layers - 1)
        return work.attention / (work.attention + work.linear)

    @property
    def tokens(self) -> int:
        """Tokens of one step, over all ranks."""
        t = self.training
        return t.sequence * t.microbatch * t.microbatches * t.layout.data

    @property
    def tokens_per_second_and_gpu(self) -> float:
        return self.tokens / self.step_ns * 1e9 / self.training.layout.gpus


def local_tokens(training: Training) -> int:
    """Tokens of a microbatch that one context-parallel rank has."""
    return training.sequence * training.microbatch // training.layout.context


def _kept(training: Training, stage: int) -> int:
    """What the fullest layer of a stage keeps for its backward."""
    t = training
    return max(
        activation_memory.kept_bytes(
            t.shape, n, local_tokens(t), t.layout, t.lora, t.checkpointing, t.executed
        )
        for n in _kinds(t, stage)
    )


def _kinds(training: Training, stage: int) -> Mapping[int, int]:
    """One layer of each kind on a stage, and how many there are like it."""
    return training.shape.kinds(layout.stage_layers(training.shape, training.layout, stage))


def _alive(training: Training, stage: int) -> int:
    return layout.layers_alive(training.shape, training.layout, stage, training.microbatches)


def _resident_layers(training: Training, stage: int) -> int:
    """Layers whose saved tensors lie on the GPU: all that are alive, less those under way or away."""
    alive = _alive(training, stage)
    away = _away(training, stage)
    return alive - away + min(SETS, away)


def _away(training: Training, stage: int) -> int:
    layers = len(layout.stage_layers(training.shape, training.layout, stage))
    return min(training.offloaded, layers) * _alive(training, stage) // layers


def _offloaded_bytes(training: Training, stage: int) -> int:
    return _away(training, stage) * _kept(training, stage)


def _saved(training: Training, stage: int) -> list[MemoryPart]:
    """What a stage's layers keep, layer by layer where they differ, less what is offloaded."""
    t = training
    layers = layout.stage_layers(t.shape, t.layout, stage)
    kept = [
        (
            many,
            activation_memory.kept_bytes(
                t.shape, n, local_tokens(t), t.layout, t.lora, t.checkpointing, t.executed
            ),
        )
        for n, many in _kinds(t, stage).items()
    ]
    resident = _resident_layers(t, stage)
    whole, rest = divmod(resident, len(layers))
    # Dense layers save more or less than others; what is left over is counted at the fullest.
    total = whole * sum(many * size for many, size in kept) + rest * max(size for _, size in kept)
    what = {
        "none": "all they save",
        "alternate": "inputs, attention outputs and every second product",
        "selective": "inputs and attention outputs",
        "full": "inputs",
    }
    away = _away(t, stage)
    why = f"{what[t.checkpointing]} of {resident} layers" + (f", {away} more in host memory" if away else "")
    return [MemoryPart("activations", total, why)]


def _streamed_bytes(training: Training, stage: int) -> int:
    """Frozen layers of a stage that are in host memory only: all but those in the slots."""
    t = training
    if not t.streamed or t.lora is None:
        return 0
    sizes = [(many, _frozen_layer(t, n)) for n, many in _kinds(t, stage).items()]
    total = sum(many * size for many, size in sizes)
    return max(0, total - SLOTS * max(size for _, size in sizes))


def _states_away(training: Training, stage: int) -> int:
    """Bytes of optimizer states that wait in host memory, and of the fp32 gradients that come to them."""
    t = training
    if not t.optimizer_away:
        return 0
    parts = static_memory.parts(t.shape, t.layout, stage, t.optimizer, t.lora)
    states = sum(part.bytes for part in parts if part.name == "optimizer states")
    return states + 4 * updated(t, stage)


def _away_with_optimizer(training: Training) -> tuple[str, ...]:
    """Sharded gradients leave as soon as they are reduced; whole ones stay until the backward has ended."""
    return ("optimizer states", "gradients") if training.layout.stage >= 2 else ("optimizer states",)


def updated(training: Training, stage: int) -> int:
    """Parameters that one rank updates: its shard of experts is of the ranks with the same ones."""
    t = training
    here, trained = t.layout, static_memory.trained(t.shape, t.layout, stage, t.lora)
    if not here.stage:
        return elements(trained)
    return sum(
        static_memory.shard(elements([w for w in trained if w.expert == of_experts]), ranks * here.copies)
        for of_experts, ranks in ((False, here.replicas), (True, here.expert_replicas))
    )


def _frozen_layer(training: Training, number: int) -> int:
    lora = training.lora or Lora()
    return static_memory.base_bytes(layout.held_layer(training.shape, training.layout, number), lora)


def _static(training: Training, stage: int) -> tuple[MemoryPart, ...]:
    t = training
    parts = static_memory.parts(t.shape, t.layout, stage, t.optimizer, t.lora)
    if t.optimizer_away:
        parts = tuple(part for part in parts if part.name not in _away_with_optimizer(t))
    away = _streamed_bytes(t, stage)
    if not away:
        return parts
    base, *others = parts
    why = f"{SLOTS} layers at a time, {away / 1e9:.2f} GB more in host memory"
    return MemoryPart(base.name, base.bytes - away, why), *others


def _moments(training: Training, stage: int) -> Iterator[Moment]:
    t = training
    static = _static(t, stage)
    tokens = local_tokens(t)
    buffers = static_memory.communication(
        t.shape, t.layout, stage, t.optimizer, tokens, t.lora, t.microbatches
    )
    outside = MemoryPart(CUDA_CONTEXT, CONTEXT, "assumed")
    rotary = activation_memory.positions(t.shape, t.sequence, t.layout.tensor)
    always = [outside, rotary, buffers]
    # Gradients are not there before the first backward, unless earlier microbatches have left theirs.
    early = static if t.microbatches > 1 else tuple(p for p in static if p.name != "gradients")
    saved = _saved(t, stage)
    if t.layout.by_pytorch and t.layout.pipeline > 1 and stage == t.layout.pipeline - 1:
        outputs = fragments.logits(t, tokens) * (t.microbatches - 1) // t.microbatches
        always.append(
            MemoryPart("logits of other microbatches", outputs, "PyTorch's pipeline returns them all")
        )
    live = activation_memory.in_a_backward(
        t.shape, _kinds(t, stage), tokens, t.layout, t.lora, t.checkpointing, t.executed
    )
    # Of fp32 weights autocast makes 16-bit ones, which the forward and then the backward keep.
    whole, one = static_memory.cast(t.shape, t.layout, stage, t.optimizer, t.lora)
    casts, cast = (MemoryPart("16-bit copies of weights", size, "autocast") for size in (whole, one))
    if stage == t.layout.pipeline - 1:
        head = MemoryPart(
            "head's input", activation_memory.head_saved(t.shape, tokens, t.layout, t.lora), "final norm"
        )
        answers = t.microbatch if t.shape.patch else tokens  # an image's class comes of one token
        size = activation_memory.logits(t.shape, answers, t.layout, fused=t.fused_loss)
        each = activation_memory.logit_bytes(t.layout)
        word, of = ("class", "images") if t.shape.patch else ("word", "tokens")
        how = f"{answers:,} {of}"
        if t.fused_loss and answers > activation_memory.LOSS_SLICE:
            how = f"{activation_memory.LOSS_SLICE:,} tokens at a time"
        logits = MemoryPart(
            "logits and loss", size, f"{how}, {each} bytes per {word} of {t.shape.vocabulary:,}"
        )
        yield Moment("loss", stage, (*early, *always, casts, *saved, head, logits))
    first, last = (
        static_memory.on_their_way(t.shape, t.layout, stage, t.optimizer, t.lora, last=which)
        for which in (False, True)
    )
    begins = casts if t.checkpointing == "none" else cast
    yield Moment("backward begins", stage, (*early, *always, begins, *saved, *live, first))
    yield Moment("backward ends", stage, (*static, *always, cast, *_last(t, stage), *live, last))
    yield Moment("update", stage, (*static, outside, buffers, rotary))


def _last(training: Training, stage: int) -> list[MemoryPart]:
    """What is saved when the backward of a microbatch reaches the stage's first layer."""
    t = training
    kept = _kept(t, stage)
    others = _alive(t, stage) - len(layout.stage_layers(t.shape, t.layout, stage))
    if t.microbatches == 1 or others <= 0:
        return [MemoryPart("activations", kept, "of the last layer in the backward")]
    away = min(t.offloaded, others)
    return [MemoryPart("activations", kept * (1 + others - away), "of the microbatches that wait")]


def _spans(training: Training, excess: int) -> Iterator[TimePart]:
    """The slowest stage's microbatches, then what comes on top."""
    t = training
    stages = [_stage_seconds(t, stage) for stage in range(t.layout.pipeline)]
    if t.layout.schedule == "dualpipe":  # a rank has a stage of each end
        stages = [_half_of_both(stage, stages[-1 - number]) for number, stage in enumerate(stages)]
    slowest = max(range(len(stages)), key=lambda stage: sum(s for _, s, _ in stages[stage]))
    each = 0.0
    for name, seconds, bound in stages[slowest]:
        each += seconds
        yield TimePart(name, round(seconds * t.microbatches * 1e9), bound)
    if t.layout.pipeline > 1:
        sent = _sent(t)
        yield TimePart("hidden states sent", round(sent * t.microbatches * 1e9), "network")
        chunks = t.layout.chunks if t.layout.schedule == "interleaved" else 1
        others = [sum(s for _, s, _ in stage) for number, stage in enumerate(stages) if number != slowest]
        yield TimePart("pipeline bubble", round(_bubble(t, sum(others), sent, chunks) * 1e9), "pipeline")
    for name, seconds, bound in exchanged.once_per_step(t, slowest):
        yield TimePart(name, round(seconds * 1e9), bound)
    if t.optimizer_away:
        yield from _update_on_host(t, slowest)
    else:
        touched = _touched(t, slowest)
        yield TimePart("optimizer update", round(touched / t.gpu.memory_bandwidth * 1e9), "memory")
    if t.unified and excess:
        # Touched in the forward and in the backward, and written back each time.
        moved = 2 * 2 * excess * t.microbatches
        yield TimePart("unified memory migrates", round(moved / t.link.migration * 1e9), "link")


def _half_of_both(
    one: list[tuple[str, float, str]], other: list[tuple[str, float, str]]
) -> list[tuple[str, float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for name, seconds, bound in (*one, *other):
        found[name] = (found.get(name, (0.0, bound))[0] + seconds / 2, bound)
    return [(name, seconds, bound) for name, (seconds, bound) in found.items()]


def _sent(training: Training) -> float:
    """Seconds of a microbatch's hidden state between stages; both directions run at once."""
    t = training
    size = (
        2 * local_tokens(t) * t.shape.hidden * (t.layout.chunks if t.layout.schedule == "interleaved" else 1)
    )
    size //= t.layout.tensor  # each tensor rank sends its piece (Megatron's scatter and gather)
    near = t.layout.gpus <= t.gpu.node
    return size / (layer_time.COLLECTIVE * (t.gpu.node_bandwidth if near else t.gpu.network))


def _bubble(training: Training, others: float, sent: float, chunks: int) -> float:
    """Seconds in which the slowest stage waits for the first microbatch to come and the last to return."""
    pipeline = training.layout.pipeline
    whole = (others + (pipeline - 1) * sent) / chunks
    if training.layout.schedule != "dualpipe":
        return whole
    # From both ends, and weight gradients fill what is left: (p / 2 - 1)(F&B + B - 3W) of (p - 1)(F + B),
    # where F = W and B = 2 W without recomputation and F&B takes as long as F and B.
    return whole * max(pipeline / 2 - 1, 0) * 2 / ((pipeline - 1) * 3)


def _update_on_host(training: Training, stage: int) -> Iterator[TimePart]:
    """Gradients go out, the CPU updates what a rank holds of the optimizer, 16-bit weights come back."""
    t = training
    count = updated(t, stage)
    copied = 2 * count / t.link.out + 2 * count / t.link.into
    yield TimePart("gradients out, weights in", round(copied * 1e9), "link")
    yield TimePart("optimizer update on the CPU", round(CPU_ADAM * count / CPU_ADAM_RATE * 1e9), "CPU")


def _touched(training: Training, stage: int) -> int:
    """Bytes that the update reads and writes: a rank's shard of what is trained, once each way."""
    t = training
    here = replace(t.layout, sharding="zero-3") if t.layout.stage in (1, 2) else t.layout
    parts = static_memory.parts(t.shape, here, stage, t.optimizer, t.lora)
    return 2 * sum(part.bytes for part in parts if part.name != "frozen base")


def passes(training: Training, stage: int) -> tuple[layer_time.Cost, layer_time.Cost, float]:
    """Mean forward and backward of a stage's layers, and the seconds that recomputation adds to each."""
    t = training
    kinds = _kinds(t, stage)
    reduces = t.layout.stage >= 2 and not t.layout.keeps_gathered
    there = [layer_time.forward(exchanged.work(t, n), t.gpu, t.layout, fp8=t.fp8, fine=t.fine) for n in kinds]
    back = [
        layer_time.backward(exchanged.work(t, n), t.gpu, t.layout, fp8=t.fp8, fine=t.fine, reduces=reduces)
        for n in kinds
    ]
    if t.async_tensor:
        there, back = [cost.overlapped() for cost in there], [cost.overlapped() for cost in back]
    again = [_recompute(t, n, cost) for n, cost in zip(kinds, there, strict=True)]
    total = sum(kinds.values())
    shares = [many / total for many in kinds.values()]
    mean = sum(share * seconds for share, seconds in zip(shares, again, strict=True))
    return _mean(there, shares), _mean(back, shares), mean


def _mean(costs: list[layer_time.Cost], shares: list[float]) -> layer_time.Cost:
    pairs = list(zip(costs, shares, strict=True))
    return layer_time.Cost(
        sum(c.compute * s for c, s in pairs),
        sum(c.memory * s for c, s in pairs),
        sum(c.network * s for c, s in pairs),
        sum(c.exposed * s for c, s in pairs),
    )


def _recompute(training: Training, number: int, cost: layer_time.Cost) -> float:
    t = training
    if t.checkpointing == "none":
        return 0.0
    if t.checkpointing == "full":
        return cost.seconds
    done = exchanged.work(t, number)
    saved = layer_time.seconds(0, done.attention, t.gpu, fp8=False)
    if t.checkpointing == "alternate":
        again = activation_memory.recomputed_share(t.shape, number, t.executed)
        saved += layer_time.seconds((1 - again) * done.linear, 0, t.gpu, fp8=t.fp8, fine=t.fine)
        return max(cost.compute - saved, cost.memory / 2) + cost.exposed / 2
    return max(cost.compute - saved, cost.memory) + cost.exposed


def copies(training: Training, stage: int) -> tuple[float, float]:
    """Seconds to copy what one layer keeps out, and in again."""
    kept, start = _kept(training, stage), training.link.latency_ns / 1e9
    return start + kept / training.link.out, start + kept / training.link.into


def _stage_seconds(training: Training, stage: int) -> list[tuple[str, float, str]]:
    """One microbatch on one stage: name, seconds, bounding resource."""
    t = training
    layers = len(layout.stage_layers(t.shape, t.layout, stage))
    there, back, again = passes(t, stage)
    found = [
        ("layers forward", layers * there.seconds, there.bound),
        ("layers backward", layers * back.seconds, back.bound),
    ]
    if again:
        found.append(("layers recomputed", layers * again, there.bound))
    found += _waiting(t, stage, there.seconds, back.seconds + again)
    found += exchanged.of_ends(t, stage)
    if stage == t.layout.pipeline - 1:
        seconds, bound = _head(t)
        found.append(("head and loss", seconds, bound))
        if t.shape.ahead:
            again_ = there.seconds + back.seconds + again + seconds
            found.append(("predictions further ahead", t.shape.ahead * again_, there.bound))
    return found


def _waiting(training: Training, stage: int, there: float, back: float) -> Iterator[tuple[str, float, str]]:
    """What offloaded activations and streamed weights make compute wait; both come in over one link."""
    t = training
    layers = len(layout.stage_layers(t.shape, t.layout, stage))
    weights = 0.0
    if t.streamed:
        weights = max(_frozen_layer(t, n) for n in _kinds(t, stage)) / t.link.into
        late = max(0.0, weights - there) + (0.0 if t.offloaded else max(0.0, weights - back))
        yield "waiting for streamed weights", layers * late, "link"
    if t.offloaded:
        out, into = copies(t, stage)
        line = simulate(layers, max(there, weights), back, out, into + weights, t.offloaded)
        yield "waiting for offloaded activations", max(line.exposed, 0.0), "link"


def _head(training: Training) -> tuple[float, str]:
    t = training
    tokens = local_tokens(t)
    if t.shape.patch:
        tokens = t.microbatch
    trained = 2 if t.lora is None else 1
    compute = 2 * t.shape.vocabulary * t.shape.hidden * tokens * (1 + trained) / t.layout.tensor
    # A head of 16-bit logits reads and writes what the loss makes, some 30 bytes per token and word.
    moved = 0 if t.fused_loss else 30 * tokens * t.shape.vocabulary // t.layout.tensor
    seconds = (compute / (t.gpu.matmul or t.gpu.sustained), moved / t.gpu.memory_bandwidth)
    return sum(seconds), "compute" if seconds[0] >= seconds[1] else "memory"


def free(training: Training) -> int:
    """How many of a stage's layers can be offloaded without making the step longer."""
    t = training
    found: list[int] = []
    for stage in range(t.layout.pipeline):
        there, back, again = passes(t, stage)
        layers = len(layout.stage_layers(t.shape, t.layout, stage))
        found.append(free_layers(layers, there.seconds, back.seconds + again, *copies(t, stage)))
    return min(found)
