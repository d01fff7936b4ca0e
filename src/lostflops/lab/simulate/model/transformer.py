"""The blocks of operators that a transformer's ranks run, with durations from the card of their GPU.

A matrix product takes its operations over the rate that large ones reach, attention likewise, and everything
else the bytes that it reads and writes over the memory's bandwidth. What tensor-parallel ranks share is
divided; a rank holds its share of the experts and computes its tokens' worth of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from lostflops.lab.simulate.model import kernel_names as names
from lostflops.lab.simulate.model.blocks import HostOperator, HostPace, LaunchedKernel, OperatorBlock
from lostflops.plan.hardware import STREAMED, Gpu
from lostflops.plan.shape import Shape, elements
from lostflops.plan.train.layer_time import FLASH_BACKWARD, attention_operations

BYTES = 2  # of an element, in 16 bits
SHORTEST = 1_500  # ns that any kernel takes
TILE = 128
ADAM_BYTES = 28  # read and written for each parameter: weight, gradient, two moments, in fp32 and bf16


@dataclass(frozen=True, eq=False)
class TransformerBlocks:
    """The blocks for microbatches of so many tokens, by `tensor` ranks of a tensor-parallel group.

    They are sequences of `sequence` tokens each; 0: one sequence.
    """

    shape: Shape
    gpu: Gpu
    pace: HostPace
    tensor: int
    tokens: int
    experts: bool  # whether layers are mixtures of experts
    sequence: int = 0

    # -- kernels ----------------------------------------------------------------------------------------

    def _gemm(
        self, out: int, inner: int, turn: int, rows: int | None = None
    ) -> tuple[LaunchedKernel, list[list[int]]]:
        rows = self.tokens if rows is None else rows
        rate = self.gpu.matmul or self.gpu.sustained
        ns = max(SHORTEST, round(2e9 * rows * out * inner / rate))
        grid = -(-rows // TILE) * -(-out // (2 * TILE))
        return LaunchedKernel(names.GEMMS[turn % len(names.GEMMS)], ns, grid), [[rows, inner], [inner, out]]

    def _moving(self, name: str, per_token: float, tokens: int | None = None) -> LaunchedKernel:
        """A kernel that reads and writes so many elements for each token."""
        count = per_token * (self.tokens if tokens is None else tokens)
        ns = max(SHORTEST, round(1e9 * BYTES * count / (STREAMED * self.gpu.memory_bandwidth)))
        return LaunchedKernel(name, ns, max(1, round(count / 4096)))

    def _attention(self, times: float, name: str) -> LaunchedKernel:
        length = min(self.sequence or self.tokens, self.tokens)
        work = attention_operations(self.shape, length, 1) * self.tokens / length / self.tensor
        ns = max(SHORTEST, round(1e9 * times * work / (self.gpu.attention or self.gpu.sustained)))
        return LaunchedKernel(name, ns, -(-self.tokens // TILE) * self.shape.heads // self.tensor)

    # -- the two halves of a layer ----------------------------------------------------------------------

    @cached_property
    def _products(self) -> dict[str, list[tuple[int, int]]]:
        """The matrix products of each half of a layer: outputs and inputs."""
        shape, t = self.shape, self.tensor
        kv = shape.kv_heads * shape.head_size
        return {
            "attention": [
                ((shape.query_width + 2 * kv) // t, shape.hidden),
                (shape.hidden, shape.query_width // t),
            ],
            "mlp": [(2 * shape.feed_forward // t, shape.hidden), (shape.hidden, shape.feed_forward // t)],
        }

    def _between(self, half: str, backward: bool = False) -> LaunchedKernel:
        """What stands between the two matrix products of a half."""
        if half == "attention":
            return self._attention(
                FLASH_BACKWARD if backward else 1.0, names.FLASH_BACKWARD if backward else names.FLASH
            )
        width = self.shape.feed_forward / self.tensor
        return self._moving(names.SILU_BACKWARD if backward else names.SILU, (5 if backward else 3) * width)

    @lru_cache(maxsize=64)  # noqa: B019 - as many as there are kinds
    def forward(self, half: str) -> OperatorBlock:
        (up, into), (out, back) = self._products[half]
        first, first_dims = self._gemm(up, into, 0)
        second, second_dims = self._gemm(out, back, 1)
        middle = "aten::scaled_dot_product_attention" if half == "attention" else "aten::silu"
        operators = [
            HostOperator(
                "aten::native_layer_norm", (self._moving(names.NORM, 2 * self.shape.hidden),), {}, 0
            ),
            _linear(first, first_dims, 1),
            HostOperator(middle, (self._between(half),), {}, 2),
            _linear(second, second_dims, 3),
            HostOperator("aten::add", (self._moving(names.ADD, 3 * self.shape.hidden),), {}, 4),
        ]
        return OperatorBlock(operators, self.pace)

    @lru_cache(maxsize=64)  # noqa: B019
    def backward(self, half: str, part: str = "both") -> OperatorBlock:
        """`part` is of 'both', 'inputs' and 'weights': which gradients."""
        (up, into), (out, back) = self._products[half]
        middle = "ScaledDotProductFlashAttentionBackward0" if half == "attention" else "SiluBackward0"
        called = (
            "aten::_scaled_dot_product_flash_attention_backward"
            if half == "attention"
            else "aten::silu_backward"
        )
        between = self._between(half, backward=True)
        norm = self._moving(names.NORM_BACKWARD, 3 * self.shape.hidden)
        if part == "weights":
            operators = [self._linear_backward(out, back, 3, part), self._linear_backward(up, into, 1, part)]
        else:
            operators = [
                self._linear_backward(out, back, 3, part),
                _node(middle, 2, HostOperator(called, (between,))),
                self._linear_backward(up, into, 1, part),
                _node(
                    "NativeLayerNormBackward0", 0, HostOperator("aten::native_layer_norm_backward", (norm,))
                ),
            ]
        return OperatorBlock(operators, self.pace)

    def _linear_backward(self, out: int, inner: int, number: int, part: str) -> HostOperator:
        products: list[HostOperator] = []
        if part != "weights":
            kernel, dims = self._gemm(inner, out, number + 1)
            products.append(_product("aten::mm", kernel, dims))
        if part != "inputs":  # the same operations, over tokens
            kernel, _ = self._gemm(out, inner, number + 2)
            products.append(_product("aten::mm", kernel, [[out, self.tokens], [self.tokens, inner]]))
        return _node("AddmmBackward0", number, *products)

    # -- experts ----------------------------------------------------------------------------------------

    @property
    def routed(self) -> int:
        """Tokens, counted once for each expert that they go to."""
        return self.tokens * max(1, self.shape.experts_per_token)

    @lru_cache(maxsize=8)  # noqa: B019
    def router(self, *, backward: bool) -> OperatorBlock:
        kernel, dims = self._gemm(max(8, self.shape.experts), self.shape.hidden, 2)
        sort = self._moving(names.TOP_K, 4 * max(8, self.shape.experts))
        gather = self._moving(names.GATHER, 2 * self.shape.hidden, self.routed)
        if backward:
            return OperatorBlock(
                [
                    _node("IndexBackward0", 2, HostOperator("aten::index_put_", (gather,))),
                    _node("MmBackward0", 1, _product("aten::mm", kernel, dims)),
                ],
                self.pace,
            )
        return OperatorBlock(
            [
                HostOperator(
                    "aten::native_layer_norm", (self._moving(names.NORM, 2 * self.shape.hidden),), {}, 0
                ),
                _linear(kernel, dims, 1),
                HostOperator("aten::topk", (sort,)),
                HostOperator("aten::index", (gather,), {}, 2),
            ],
            self.pace,
        )

    @lru_cache(maxsize=8)  # noqa: B019
    def experts_pass(self, part: str) -> OperatorBlock:
        """The experts' products: 'forward', 'both', 'inputs' or 'weights'."""
        hidden, width = self.shape.hidden, (self.shape.expert_width or self.shape.feed_forward) // self.tensor
        rate = self.gpu.matmul or self.gpu.sustained
        times = 2 if part == "both" else 1
        operators: list[HostOperator] = []
        for number, (out, inner) in enumerate(((2 * width, hidden), (hidden, width))):
            ns = max(SHORTEST, round(2e9 * self.routed * out * inner / rate))
            kernel = LaunchedKernel(names.GROUPED, ns, 132)
            dims = [[self.routed, inner], [max(1, self.shape.experts), inner, out]]
            product = _product("aten::_grouped_mm", kernel, dims)
            if part == "forward":
                operators += [HostOperator("aten::_grouped_mm", product.calls, product.args, number)]
                if not number:
                    operators.append(
                        HostOperator("aten::silu", (self._moving(names.SILU, 3 * width, self.routed),), {}, 2)
                    )
            else:
                operators.insert(0, _node("GroupedMmBackward0", number, *[product] * times))
        return OperatorBlock(operators, self.pace)

    # -- around the layers ------------------------------------------------------------------------------

    @cached_property
    def embedding(self) -> OperatorBlock:
        dims = [[self.shape.vocabulary, self.shape.hidden], [1, self.tokens]]
        kernel = self._moving(names.GATHER, 2 * self.shape.hidden)
        args = {"Input Dims": dims, "Input type": [names.BF16, "long int"]}
        return OperatorBlock([HostOperator("aten::embedding", (kernel,), args, 0)], self.pace)

    @cached_property
    def loss(self) -> OperatorBlock:
        kernel = self._moving(names.LOSS, 4 * self.shape.hidden)
        return OperatorBlock([HostOperator("aten::cross_entropy_loss", (kernel,), {}, 0)], self.pace)

    @cached_property
    def parameters(self) -> int:
        """Of one layer, as one rank of a tensor-parallel group holds them; experts apart."""
        layer = self.shape.layer(self.shape.layers - 1)
        return sum(w.elements for w in layer if not w.expert) // self.tensor

    @cached_property
    def expert_parameters(self) -> int:
        """Of one layer's experts, all of them."""
        return elements([w for w in self.shape.layer(self.shape.layers - 1) if w.expert]) // self.tensor

    @lru_cache(maxsize=8)  # noqa: B019
    def optimizer(self, owned: int, calls: int) -> OperatorBlock:
        """A fused step over `owned` parameters in so many launches."""
        each = self._moving(names.ADAM, ADAM_BYTES / BYTES, max(1, owned // max(1, calls)))
        return OperatorBlock([HostOperator("aten::_fused_adamw_", (each,) * calls)], self.pace)


def _product(name: str, kernel: LaunchedKernel, dims: list[list[int]]) -> HostOperator:
    return HostOperator(name, (kernel,), {"Input Dims": dims, "Input type": [names.BF16] * len(dims)})


def _linear(kernel: LaunchedKernel, dims: list[list[int]], number: int) -> HostOperator:
    return HostOperator("aten::linear", (_product("aten::mm", kernel, dims),), {}, number)


def _node(name: str, number: int, *calls: HostOperator) -> HostOperator:
    """A node of autograd's graph, in the wrapper that the engine draws around it."""
    inner = HostOperator(name, calls, {"Fwd thread id": 1}, number)
    return HostOperator(
        f"autograd::engine::evaluate_function: {name}", (inner,), {"Fwd thread id": 1}, number
    )
