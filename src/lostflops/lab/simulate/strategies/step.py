"""The program of one rank: what its host does, step by step, in the order in which it does it."""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.lab.simulate.instructions import (
    COMPUTE,
    Begin,
    Busy,
    Close,
    Collective,
    Compute,
    HostCopy,
    Instruction,
    Open,
    StreamWait,
    Synchronise,
    Thread,
)
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.model.blocks import US, OperatorBlock
from lostflops.replay.pipeline.schedules import StagePass, passes

from .ddp import DistributedData
from .sharded import FullySharded, ZeroThree
from .sharing import Sharing
from .zero import ZeroOne, ZeroTwo

SHARING: dict[str, type[Sharing]] = {
    "ddp": DistributedData,
    "fsdp2": FullySharded,
    "zero1": ZeroOne,
    "zero2": ZeroTwo,
    "zero3": ZeroThree,
}
REDUCE_NORM, TENSOR, EXPERT = 26, 28, 30  # streams
OUT, BACK = 36, 37
RECEIVE, SEND = {"F": 32, "B": 33}, {"F": 34, "B": 35}
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
TOKEN_BYTES = 8
ADAM_CALLS = 6
HALVES = ("attention", "mlp")


def program(job: SimulatedJob, rank: int) -> Iterator[Instruction]:
    """All that a rank does."""
    steps = RankProgram(job, rank)
    for number in range(job.warmup + job.steps):
        yield from steps.step(number)
    yield Synchronise("cudaDeviceSynchronize")


class RankProgram:
    """Writes the steps of one rank."""

    def __init__(self, job: SimulatedJob, rank: int) -> None:
        self.job, self.rank, self.strategy = job, rank, job.strategy
        self.stage = job.strategy.stage(rank)
        self.groups = job.strategy.groups(rank)
        self.chunk_layers = job.chunk_layers(self.stage)
        self.layers = self.chunk_layers * job.strategy.chunks
        data = self.groups.get("data")
        self.sharing = SHARING[job.strategy.data](job, data, self.layers) if data else None
        s = job.strategy
        self.passes = passes(s.schedule, s.pipeline, self.stage, s.microbatches, s.chunks)
        self.splits_backward = any(each.kind == "W" for each in self.passes)
        self.number = 0
        self.tokens = job.tokens
        self.blocks = job.blocks(self.tokens)

    # -- the step ---------------------------------------------------------------------------------------

    def step(self, number: int) -> Iterator[Instruction]:
        self.number = number
        self.tokens = self.job.step_tokens(self.rank, number)
        self.blocks = self.job.blocks(self.tokens)
        yield Begin(number)
        yield Open("user_annotation", f"ProfilerStep#{number}")
        yield from self._batch()
        yield from self._planted("forward")
        for each in self.passes:
            yield from self._forward(each) if each.kind == "F" else self._backward(each)
        if self.sharing:
            yield from self.sharing.before_optimizer()
        yield from self._clip()
        yield from self._optimizer()
        if self.job.reads_loss:
            yield from self._read("aten::item")
        yield from self._planted("closing")
        yield Close()
        yield Busy(self._host(30 * US))

    def _host(self, ns: int) -> int:
        """Host time that an ideal machine does not take."""
        return ns if self.job.costs.pace.dispatch else 0

    def _planted(self, where: str) -> Iterator[Instruction]:
        for planted in self.job.planted:
            if planted.happens(where, self.rank, self.number):
                yield from planted.instructions

    def _batch(self) -> Iterator[Instruction]:
        planted = list(self._planted("input"))
        yield from planted or [Busy(self._host(250 * US), (("user_annotation", LOADER),))]
        size = self.tokens * TOKEN_BYTES
        for _ in range(2):
            yield HostCopy(
                "HtoD", "Pinned", size, self._host(round(1e9 * size / self.job.host_link) + 2 * US)
            )

    def _read(self, operator: str) -> Iterator[Instruction]:
        """The host waits for a value on the device."""
        yield Open("cpu_op", operator)
        yield Open("cpu_op", "aten::_local_scalar_dense")
        yield HostCopy("DtoH", "Pinned", 4, self._host(2 * US))
        yield Synchronise("cudaStreamSynchronize", COMPUTE, self._host(2 * US))
        yield Close()
        yield Close()

    def _clip(self) -> Iterator[Instruction]:
        """The norm of all gradients, where no rank has them all."""
        whole = self.strategy.tensor == self.strategy.pipeline == 1 and self.strategy.data == "ddp"
        if not whole and "world" in self.groups:
            yield Collective(
                "all-reduce", self.groups["world"], 4, REDUCE_NORM, holds_back=True, dtype="Float"
            )

    def _optimizer(self) -> Iterator[Instruction]:
        owned = self.sharing.owned if self.sharing else self.layers * self.blocks.parameters
        yield Open("user_annotation", "Optimizer.step#AdamW.step")
        yield Compute(self.blocks.optimizer(owned, ADAM_CALLS), self._place(0, 0, 15))
        yield Close()
        if self.sharing:
            yield from self.sharing.after_optimizer()
        yield Busy(self._host(90 * US), (("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad"),))

    # -- passes -----------------------------------------------------------------------------------------

    def _place(self, layer: int, microbatch: int, what: int) -> int:
        return what + 16 * (layer + (self.layers + 1) * microbatch)

    def _sequence(self, layer: int, microbatch: int, half: int) -> int:
        each = 8 * 2 * self.layers
        return 1 + half * 8 + 16 * layer + each * (microbatch + self.strategy.microbatches * self.number)

    def _layers_of(self, chunk: int) -> range:
        return range(chunk * self.chunk_layers, (chunk + 1) * self.chunk_layers)

    def _compute(self, block: OperatorBlock, layer: int, microbatch: int, what: int, half: int) -> Compute:
        return Compute(block, self._place(layer, microbatch, what), self._sequence(layer, microbatch, half))

    def _forward(self, each: StagePass) -> Iterator[Instruction]:
        yield from self._exchange("receive", each, self._neighbour(each, "F", -1))
        if self._is_first(each):
            yield Compute(self.blocks.embedding, self._place(self.layers, each.microbatch, 0))
        for layer in self._layers_of(each.chunk):
            if self.sharing:
                yield from self.sharing.before_forward(layer)
            for half, name in enumerate(HALVES):
                yield from self._forward_half(name, layer, each.microbatch, half)
            yield from self._leave()
            for _ in range(self.job.reads_per_layer):
                yield from self._read("aten::item")
        if self._is_last(each):
            yield Compute(self.blocks.loss, self._place(self.layers, each.microbatch, 1))
        yield from self._exchange("send", each, self._neighbour(each, "F", 1))

    def _forward_half(self, name: str, layer: int, microbatch: int, half: int) -> Iterator[Instruction]:
        blocks = self.blocks
        if half and blocks.experts:
            yield self._compute(blocks.router(backward=False), layer, microbatch, 2, half)
            yield from self._to_experts()
            yield self._compute(blocks.experts_pass("forward"), layer, microbatch, 3, half)
            yield from self._to_experts()
        else:
            yield self._compute(blocks.forward(name), layer, microbatch, half, half)
        yield from self._join_tensor()

    def _backward(self, each: StagePass) -> Iterator[Instruction]:
        """Of a pass over inputs and weights, of inputs alone, or of weights alone."""
        part = "weights" if each.kind == "W" else "inputs" if self.splits_backward else "both"
        last = each.microbatch == self._last_backward(each.chunk)
        if part != "weights":
            yield from self._exchange("receive", each, self._neighbour(each, "B", 1))
        yield Thread("pt_autograd_0")
        yield from self._planted_in_backward(each)
        layers = self._layers_of(each.chunk)
        yield from self._come_back()
        for layer in reversed(layers):
            if self.sharing:
                yield from self.sharing.before_backward(layer)
            if self.job.offloads:
                yield StreamWait(COMPUTE, BACK)
                if layer > layers[0]:
                    yield StreamWait(BACK, COMPUTE)
                    yield from self._come_back()
            if self.job.recomputes and part != "weights":
                yield from self._again(layer, each.microbatch)
            for half in (1, 0):
                yield from self._backward_half(HALVES[half], layer, each.microbatch, half, part)
            if self.sharing and part != "inputs":
                yield from self.sharing.after_backward(layer, last)
        yield Thread()
        if part != "weights":
            yield from self._exchange("send", each, self._neighbour(each, "B", -1))

    def _again(self, layer: int, microbatch: int) -> Iterator[Instruction]:
        """A layer's forward pass in the middle of its backward pass, as checkpoints make it."""
        yield Open("cpu_op", "CheckpointFunctionBackward")
        for half, name in enumerate(HALVES):
            yield Compute(self.blocks.forward(name), self._place(layer, microbatch, 11 + half))
            yield from self._join_tensor()
        yield Close()

    def _leave(self) -> Iterator[Instruction]:
        """What a layer keeps for its backward pass leaves for the host as soon as the layer is done."""
        if self.job.offloads:
            yield StreamWait(OUT, COMPUTE)
            yield self._moved("DtoH", OUT)

    def _come_back(self) -> Iterator[Instruction]:
        """What a layer kept comes back, after it has left: the last first."""
        if self.job.offloads:
            yield StreamWait(BACK, OUT)
            yield self._moved("HtoD", BACK)

    def _moved(self, direction: str, stream: int) -> HostCopy:
        size = self.job.offloads
        return HostCopy(direction, "Pinned", size, self._host(round(1e9 * size / self.job.host_link)), stream)

    def _planted_in_backward(self, each: StagePass) -> Iterator[Instruction]:
        if each.kind != "W" and each.microbatch == 0 and each.chunk == 0:
            yield from self._planted("backward")

    def _last_backward(self, chunk: int) -> int:
        kind = "W" if self.splits_backward else "B"
        return [each.microbatch for each in self.passes if each.kind == kind and each.chunk == chunk][-1]

    def _backward_half(
        self, name: str, layer: int, microbatch: int, half: int, part: str
    ) -> Iterator[Instruction]:
        blocks = self.blocks
        what = {"both": 4, "inputs": 6, "weights": 8}[part]
        if half and blocks.experts:
            if part != "weights":
                yield from self._to_experts()
            yield self._compute(blocks.experts_pass(part), layer, microbatch, what + 1, half)
            if part != "weights":
                yield from self._to_experts()
                yield self._compute(blocks.router(backward=True), layer, microbatch, 10, half)
        else:
            yield self._compute(blocks.backward(name, part), layer, microbatch, what + half, half)
        if part != "weights":
            yield from self._join_tensor()

    # -- what computation waits for -----------------------------------------------------------------------

    def _join_tensor(self) -> Iterator[Instruction]:
        if "tensor" in self.groups:
            size = 2 * self.tokens * self.job.shape.hidden
            yield Collective("all-reduce", self.groups["tensor"], size, TENSOR, holds_back=True)

    def _to_experts(self) -> Iterator[Instruction]:
        size = 2 * self.blocks.routed * self.job.shape.hidden
        yield Collective("all-to-all", self.groups["expert"], size, EXPERT, holds_back=True)

    def _virtual(self, each: StagePass) -> int:
        """The place of a chunk among all chunks that a microbatch passes."""
        return each.chunk * self.strategy.pipeline + self.stage

    def _is_first(self, each: StagePass) -> bool:
        return self._virtual(each) == 0

    def _is_last(self, each: StagePass) -> bool:
        return self._virtual(each) == self.strategy.pipeline * self.strategy.chunks - 1

    def _neighbour(self, each: StagePass, kind: str, ahead: int) -> tuple[int, str] | None:
        """The rank that has the next or previous chunk, and which way the message goes."""
        virtual = self._virtual(each) + ahead
        if not 0 <= virtual < self.strategy.pipeline * self.strategy.chunks or self.strategy.pipeline == 1:
            return None
        stages = self.groups["pipeline"].ranks
        return stages[virtual % self.strategy.pipeline], kind

    def _exchange(
        self, what: str, each: StagePass, neighbour: tuple[int, str] | None
    ) -> Iterator[Instruction]:
        if neighbour is None:
            return
        peer, kind = neighbour
        size = 2 * self.tokens * self.job.shape.hidden
        stream = (RECEIVE if what == "receive" else SEND)[kind]
        yield Collective(
            what,
            self.groups["pipeline"],
            size,
            stream,
            holds_back=what == "receive",
            peer=peer,
            tag=int(kind == "B"),
        )
