"""What is simulated: a model on ranks, how it is spread, recorded and timed, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from lostflops.lab.simulate.instructions import Instruction
from lostflops.lab.simulate.jitter import even, key
from lostflops.lab.simulate.model.transformer import TransformerBlocks
from lostflops.lab.simulate.running.costs import HostCosts
from lostflops.lab.simulate.running.network import Network
from lostflops.lab.simulate.strategy import Strategy
from lostflops.plan import models
from lostflops.plan.hardware import Gpu, gpu
from lostflops.plan.shape import Shape
from lostflops.plan.train.layer_time import COLLECTIVE

MIB = 1 << 20
GRAIN = 256  # tokens


@dataclass(frozen=True)
class Planted:
    """Something that hosts do beside training: `where` is 'input', 'forward', 'backward' or 'closing'.

    On these ranks (None: on all), in every `every`th step from `first` on.
    """

    where: str
    instructions: tuple[Instruction, ...]
    ranks: frozenset[int] | None = None
    every: int = 1
    first: int = 0

    def happens(self, where: str, rank: int, step: int) -> bool:
        here = self.ranks is None or rank in self.ranks
        return here and where == self.where and step >= self.first and (step - self.first) % self.every == 0


@dataclass(frozen=True)
class HostClock:
    """How a host's clock differs: ahead by `offset` ns at the start, and by `drift` ns each second more."""

    offset: int = 0
    drift: int = 0

    def reads(self, ns: int) -> int:
        return ns + self.offset + ns * self.drift // 1_000_000_000


@dataclass(frozen=True)
class SimulatedJob:
    """A training job. What faults change has no fault by default."""

    strategy: Strategy
    seed: int = 0
    steps: int = 4  # recorded
    warmup: int = 2  # steps before them
    model: str = "llama-3-8b"
    layers: int = 0  # of the model; 0: two for each chunk of each stage
    tokens: int = 8192  # of a microbatch
    sequence: int = 0  # tokens of a sequence; 0: a microbatch is one
    card: str = "h100"
    costs: HostCosts = field(default_factory=HostCosts)
    reads_loss: bool = True  # in every step, for which the host waits
    stacks: bool = False  # whether Python's frames are recorded
    syncs: bool = False  # whether waits between streams are recorded
    given_network: Network | None = None
    bucket: int = 128 * MIB  # bytes of gradients that are reduced at once
    overlap: bool = True
    prefetches: bool = False  # whether sharded weights are gathered while the layer before computes
    trained: float = 1.0  # share of the weights that get gradients
    recomputes: bool = False  # whether every layer is computed again in the backward pass
    offloads: int = 0  # bytes of activations that leave for the host and come back, for each layer
    host_link: float = 25e9  # bytes per second of a pinned copy
    planted: tuple[Planted, ...] = ()
    reads_per_layer: int = 0  # values that the host reads from the device in each layer
    slow_ranks: Mapping[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])
    slow_links: Mapping[int, float] = field(default_factory=dict[int, float])
    more_layers: Mapping[int, int] = field(default_factory=dict[int, int])  # of a stage
    lengths: float = 0.0  # by how much of a microbatch its tokens vary over replicas and steps
    clocks: Mapping[int, HostClock] = field(default_factory=dict[int, HostClock])
    missing: frozenset[int] = frozenset()  # ranks whose file is not there
    cut: Mapping[int, float] = field(default_factory=dict[int, float])  # how much of a rank's file is left

    def __getstate__(self) -> dict[str, Any]:
        """Without what was worked out from it: numbers of kinds of rows are of this process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def ranks(self) -> int:
        return self.strategy.ranks

    @cached_property
    def noise(self) -> int:
        return key("job", self.seed)

    @cached_property
    def gpu(self) -> Gpu:
        return gpu(self.card)

    @cached_property
    def shape(self) -> Shape:
        return models.named(self.model)

    @cached_property
    def network(self) -> Network:
        if self.given_network:
            return replace(self.given_network, slow=dict(self.slow_links))
        node = self.gpu.node
        near, far = COLLECTIVE * self.gpu.node_bandwidth, COLLECTIVE * self.gpu.network
        return Network(node, near, far, slow=dict(self.slow_links))

    def host(self, rank: int) -> int:
        return rank // self.network.node

    def clock(self, rank: int) -> HostClock:
        return self.clocks.get(self.host(rank), HostClock())

    def slowness(self, rank: int, step: int) -> float:
        """How many times as long as usual a rank's kernels run in a step."""
        factor, since = self.slow_ranks.get(rank, (1.0, 0))
        return factor if step >= since else 1.0

    def chunk_layers(self, stage: int) -> int:
        """Layers in each chunk of a stage."""
        chunks = self.strategy.pipeline * self.strategy.chunks
        return max(1, self.layers // chunks if self.layers else 2) + self.more_layers.get(stage, 0)

    def step_tokens(self, rank: int, step: int) -> int:
        """Tokens of a rank's microbatches in a step, in multiples of 256: a replica's ranks have the same.

        However they vary, all replicas together have as many in every step.
        """
        if not self.lengths:
            return self.tokens
        return self._shares(step)[self.strategy.place(rank)[1]]

    def _shares(self, step: int) -> list[int]:
        known = self._shares_of_steps.get(step)
        if known is None:
            varied = even(key(self.noise, "tokens", step), self.strategy.replicas)
            parts = 1 + self.lengths * (varied - varied.mean())
            ends = np.rint(np.cumsum(parts) * self.tokens / GRAIN).astype(np.int64) * GRAIN
            known = self._shares_of_steps[step] = [max(GRAIN, n) for n in np.diff(ends, prepend=0).tolist()]
        return known

    @cached_property
    def _shares_of_steps(self) -> dict[int, list[int]]:
        return {}

    def blocks(self, tokens: int) -> TransformerBlocks:
        known = self._blocks.get(tokens)
        if known is None:
            known = self._blocks[tokens] = TransformerBlocks(
                self.shape,
                self.gpu,
                self.costs.pace,
                self.strategy.tensor,
                tokens,
                self.strategy.expert > 1,
                self.sequence,
            )
        return known

    @cached_property
    def _blocks(self) -> dict[int, TransformerBlocks]:
        return {}
