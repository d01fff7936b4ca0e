"""Made-up training steps of a language model, as PyTorch would issue them, with faults to plant.

A `Job` says what every rank does; a `Pause` is time that the host loses, with the rows that show it. Kernel
names are those of H100 recordings. What is not a knob here is the same in a faulty job and in its healthy
twin, down to the model's sizes, so that their steps differ by the fault alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from .simulator import US, Program, Work

BF16, FP32 = "c10::BFloat16", "float"
Rows = Sequence[tuple[str, str]]

GEMM = {
    BF16: (
        "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT",
        "nvjet_tst_192x192_64x3_1x2_h_bz_coopB_TNN",
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
            "_kernel__5x_cublas"
        ),
    ),
    FP32: (
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
            "_execute_kernel__5x_cublas"
        ),
        "ampere_sgemm_128x64_tn",
        "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
    ),
}
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{0}, float, false>(int, float, {0} const*, {0} const*, {0} const*, float*, float*, {0}*)"  # noqa: E501
NORM_BACK = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{0}, float, false>({0} const*, {0} const*, float const*, float const*, {0} const*, {0}*, int)"  # noqa: E501
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, false, true, false, false>(pytorch_flash::Flash_fwd_params)"  # noqa: E501
FLASH_BACK = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, true, false, cutlass::bfloat16_t>, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)"  # noqa: E501
EFFICIENT = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)"  # noqa: E501
EFFICIENT_BACK = "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm80, float, true, false, false, 64, 64, 64, false>::Params)"  # noqa: E501
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<{0}>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<{0}>, std::array<char*, 3ul>)"  # noqa: E501
GELU = "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{{lambda()#2}}::operator()() const::{{lambda({0})#1}}, std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl)"  # noqa: E501
GELU_BACK = "void at::native::vectorized_elementwise_kernel<8, at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{{lambda()#2}}::operator()() const::{{lambda({0}, {0})#1}}, std::array<char*, 3ul> >(int, at::native::GeluBackwardCUDAKernelImpl)"  # noqa: E501
EMBED = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"  # noqa: E501
LOSS = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)"  # noqa: E501
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false> >(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"  # noqa: E501
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Pause:
    """`ms` in which the host does something else, shown by nested `rows` (category and name).

    `where` is 'input' (while the batch is fetched), 'forward', 'backward' (on the autograd thread), 'logging'
    (after the optimizer, when the loss was read). `chatter` are short rows inside the
    innermost one, at its start. `on` limits it to these steps. `calls` are API calls in place of the time.
    """

    ms: float
    rows: Rows = ()
    where: str = "forward"
    chatter: Rows = ()
    on: tuple[int, ...] | None = None
    calls: tuple[tuple[str, float, bool], ...] = ()  # name, µs, whether it waits for the device


@dataclass(frozen=True)
class Copy:
    """A copy in every step: `where` is 'input' or 'checkpoint'."""

    direction: str  # HtoD, DtoH
    kind: str  # Pageable, Pinned
    mb: float
    count: int = 1
    gb_per_s: float = 10.0
    stream: int = 7


@dataclass(frozen=True)
class Job:
    """A training job. Times are of one kernel or operator; `per_rank` changes knobs of single ranks."""

    seed: str = "0"
    steps: int = 6
    skip: int = 5  # steps before the recording
    layers: int = 8
    kernel_us: float = 220.0  # of a middling kernel
    dispatch_us: float = 16.0  # of an operator on the host, its launch included
    python_us: float = 60.0  # between two layers
    sync: bool = True  # the loss is read in every step
    stacks: bool = False
    precision: str = BF16
    sync_per_layer: int = 0
    pauses: tuple[Pause, ...] = ()
    input_copy: Copy = field(default_factory=lambda: Copy("HtoD", "Pinned", 0.26, 2, 25.0))
    checkpoint: tuple[Rows, tuple[Copy, ...]] = ((), ())
    graph: bool = False  # forward and backward are replayed from a CUDA graph
    memory_bound: bool = False
    world: int = 1
    buckets: int = 4
    transfer_us: float = 1500.0  # of one bucket
    bucket_mb: float = 0.0  # 0: what 120 GB/s carry in that time
    overlap: bool = True
    stages: int = 0  # pipeline stages; 0 is data parallel
    microbatches: int = 1
    speed: float = 1.0  # kernels last so many times as long
    moving: float = 0.0  # so much more compute on the rank whose turn it is
    skews: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    stop: int | None = None  # a step in which this rank dies
    warm: tuple[Pause, ...] = ()  # only in the first recorded step
    per_rank: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])

    def of(self, rank: int) -> Job:
        return replace(self, **self.per_rank.get(rank, {}))


def tape(job: Job, rank: int) -> list[Any]:
    """The instructions of one rank."""
    trainer = _Trainer(job.of(rank), rank)
    trainer.train()
    return trainer.p.tape


class _Trainer:
    """Writes one rank's program."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.p = Program(f"{job.seed}/{rank}")
        self.shapes = Program(f"{job.seed}/shapes").random  # the same model on all ranks
        self.sizes = [self.shapes.uniform(0.85, 1.15) for _ in range(64)]
        self.number = 0
        self.sequence = 0
        self.calls = 0
        self.kernels = 0

    # -- rows of the host ------------------------------------------------------------------------------

    @contextmanager
    def frames(self, *names: str) -> Iterator[None]:
        """Python frames, where the recording has stacks."""
        if not names or not self.job.stacks:
            yield
            return
        with self.p.row("python_function", names[0]), self.frames(*names[1:]):
            yield

    @contextmanager
    def rows(self, rows: Rows) -> Iterator[None]:
        if not rows:
            yield
            return
        category, name = rows[0]
        shown = category != "python_function" or self.job.stacks
        with self.p.row(category, name) if shown else nullcontext(), self.rows(rows[1:]):
            yield

    def pause(self, where: str) -> None:
        """All that is planted here."""
        first = self.job.skip
        for pause in self.job.pauses:
            if pause.where == where and (pause.on is None or self.number - first in pause.on):
                self._pause(pause)
        for pause in self.job.warm:
            if pause.where == where and self.number == first:
                self._pause(pause)

    def _pause(self, pause: Pause) -> None:
        with self.rows(pause.rows):
            for category, name in pause.chatter:
                with self.rows([(category, name)]):
                    self.p.work(250)
            for api, us, waits in pause.calls:
                if waits:
                    self.p.synchronise(api, None, us)
                else:
                    self.p.call(api, us)
            self.p.work(1000 * pause.ms - 250 * len(pause.chatter))

    # -- work on the device ----------------------------------------------------------------------------

    def lasting(self, weight: float) -> int:
        """How long a kernel runs on this rank in this step, ns."""
        job = self.job
        size = self.sizes[self.kernels % 64]
        self.kernels += 1
        more = job.moving if job.world and job.moving and self.number % job.world == self.rank else 0.0
        return max(1500, round(weight * size * job.kernel_us * US * job.speed * (1 + more)))

    def operator(
        self, name: str, kernels: Sequence[tuple[str, float]], dims: Any = None, **args: Any
    ) -> None:
        """An operator that launches kernels; `weight` of each is a multiple of the job's kernel time."""
        p, job = self.p, self.job
        shaped = {"Input Dims": dims, "Input type": [job.precision] * len(dims)} if dims else {}
        with p.row("cpu_op", name, **shaped, **args):
            for kernel, weight in kernels:
                p.work(0.5 * job.dispatch_us)
                api = "cuLaunchKernelEx" if kernel.startswith("nvjet") else "cudaLaunchKernel"
                p.launch(Work(kernel, self.lasting(weight), api=api), us=0.3 * job.dispatch_us)
            p.work(0.2 * job.dispatch_us)

    def gemm(self, weight: float) -> tuple[str, float]:
        names = GEMM[self.job.precision]
        slow = 6.0 if self.job.precision == FP32 else 1.0
        name = names[self.kernels % len(names)]
        if self.job.memory_bound:
            weight *= 0.15
        return name, weight * slow

    def small(self, name: str, weight: float) -> tuple[str, float]:
        if self.job.memory_bound:
            weight *= 6
        return name.format(self.job.precision), weight

    # -- the step --------------------------------------------------------------------------------------

    def train(self) -> None:
        job, p = self.job, self.p
        with self.frames("train.py(1): <module>", "train.py(112): main"):
            p.work(300)
            for self.number in range(job.skip + job.steps):
                p.step(self.number)
                self.kernels = self.number % 5
                with p.row("user_annotation", f"ProfilerStep#{self.number}"):
                    if job.stop == self.number:
                        self.begun()
                        p.tape.append(("work", 1000))
                        return
                    self.step()
                p.work(30)
            p.synchronise("cudaDeviceSynchronize")

    def begun(self) -> None:
        """What a rank does of the step in which it dies: its device has finished all that it was given."""
        self.batch()
        self.forward(1)
        self.p.synchronise("cudaDeviceSynchronize")

    def step(self) -> None:
        if self.job.stages:
            self.pipeline()
            return
        self.batch()
        if self.job.graph:
            self.replay()
        else:
            self.pause("forward")
            self.forward()
            self.loss()
            self.backward()
        self.optimizer()
        if self.job.sync:
            self.item("train.py(131): log_loss")
        self.pause("logging")
        self.save()

    def batch(self) -> None:
        p = self.p
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        loading = [x for x in self.job.pauses if x.where == "input"]
        if not loading:
            with (
                self.frames("torch/utils/data/dataloader.py(733): __next__"),
                p.row("user_annotation", name),
            ):
                p.work(250)
        self.pause("input")
        with self.frames("train.py(88): to_device"):
            for _ in range(self.job.input_copy.count):
                with p.row("cpu_op", "aten::to"), p.row("cpu_op", "aten::_to_copy"):
                    p.work(12)
                    with p.row("cpu_op", "aten::copy_"):
                        self.copy(self.job.input_copy)

    def copy(self, copy: Copy) -> None:
        """One copy as torch does it: what is pageable, the host waits for."""
        p = self.p
        memory = f"{copy.kind} -> Device" if copy.direction == "HtoD" else f"Device -> {copy.kind}"
        size = round(copy.mb * 1e6)
        duration = max(1500, round(size / copy.gb_per_s))
        work = Work(
            f"Memcpy {copy.direction} ({memory})", duration, copy.stream, "gpu_memcpy", "cudaMemcpyAsync",
            args={"bytes": size, "memory bandwidth (GB/s)": copy.gb_per_s},
        )  # fmt: skip
        p.launch(work, us=6, blocking=copy.kind == "Pageable")
        if copy.kind == "Pageable" or copy.direction == "DtoH":
            p.synchronise("cudaStreamSynchronize", copy.stream)

    def item(self, frame: str) -> None:
        p = self.p
        with (
            self.frames(frame, "<built-in method item of Tensor object at 0x7f11dcef5090>"),
            p.row("cpu_op", "aten::item"),
            p.row("cpu_op", "aten::_local_scalar_dense"),
        ):
            p.work(4)
            self.copy(Copy("DtoH", "Pinned", 4e-6))

    def forward(self, layers: int | None = None) -> None:
        p, job = self.p, self.job
        bf16 = job.precision == BF16
        with self.frames("nn.Module: Transformer_0", "model.py(203): forward"):
            self.operator("aten::embedding", [self.small(EMBED, 0.3)])
            for layer in range(layers or job.layers):
                with self.frames(f"nn.Module: Block_{layer}", "model.py(150): forward"):
                    p.work(job.python_us)
                    self.operator("aten::native_layer_norm", [self.small(NORM, 0.25)])
                    self.linear(1.4)
                    attention = FLASH if bf16 else EFFICIENT
                    self.operator("aten::scaled_dot_product_attention", [self.small(attention, 1.0)])
                    self.linear(0.8)
                    self.operator("aten::add", [self.small(ADD, 0.2)])
                    self.operator("aten::native_layer_norm", [self.small(NORM, 0.25)])
                    self.linear(1.9)
                    self.operator("aten::gelu", [self.small(GELU, 0.3)])
                    self.linear(1.9)
                    self.operator("aten::add", [self.small(ADD, 0.2)])
                    for _ in range(job.sync_per_layer):
                        self.item("model.py(171): clip_if_large")
                        p.work(40)

    def linear(self, weight: float) -> None:
        with self.p.row("cpu_op", "aten::linear"):
            self.operator("aten::addmm", [self.gemm(weight)], [[4096], [4096, 4096], [4096, 4096]])

    def loss(self) -> None:
        with self.frames("torch/nn/functional.py(3400): cross_entropy"):
            self.operator("aten::cross_entropy_loss", [self.small(LOSS, 0.5)])

    @contextmanager
    def engine(self) -> Iterator[None]:
        """`loss.backward()`: the main thread waits inside for the autograd engine's."""
        with (
            self.frames(
                "torch/_tensor.py(630): backward",
                "torch/autograd/__init__.py(357): backward",
                "torch/autograd/graph.py(829): _engine_run_backward",
                "<built-in method run_backward of torch._C._EngineBase object at 0x7f0bd15e6cd0>",
            ),
            self.p.thread("pt_autograd_0"),
        ):
            yield

    @contextmanager
    def node(self, name: str) -> Iterator[None]:
        self.sequence += 1
        args = {"Sequence number": self.sequence, "Fwd thread id": 1}
        with (
            self.p.row("cpu_op", f"autograd::engine::evaluate_function: {name}", **args),
            self.p.row("cpu_op", name, **args),
        ):
            yield

    def backward(self) -> None:
        job, p = self.job, self.p
        every = max(1, job.layers // job.buckets)
        with self.engine():
            for layer in reversed(range(job.layers)):
                self.back_layer()
                if layer == job.layers // 2:
                    self.pause("backward")
                last = layer == 0
                if job.world > 1 and job.overlap and (last or layer % every == 0):
                    self.all_reduce(last)
            if job.world > 1 and not job.overlap:
                for bucket in range(job.buckets):
                    self.all_reduce(bucket == job.buckets - 1)
            if job.world > 1:
                p.wait(f"reduced{self.number}", 7)

    def back_layer(self) -> None:
        bf16 = self.job.precision == BF16
        dims = [[4096, 4096], [4096, 4096]]
        for weight, others in (
            (1.9, [("GeluBackward0", "aten::gelu_backward", GELU_BACK, 0.4)]),
            (1.9, [("NativeLayerNormBackward0", "aten::native_layer_norm_backward", NORM_BACK, 0.4)]),
            (0.8, [("AttentionBackward0", "aten::_attention_backward",
                    FLASH_BACK if bf16 else EFFICIENT_BACK, 2.2)]),
            (1.4, [("NativeLayerNormBackward0", "aten::native_layer_norm_backward", NORM_BACK, 0.4)]),
        ):  # fmt: skip
            with self.node("AddmmBackward0"):
                self.operator("aten::mm", [self.gemm(weight)], dims)
                self.operator("aten::mm", [self.gemm(weight)], dims)
            for node, name, kernel, size in others:
                with self.node(node):
                    self.operator(name, [self.small(kernel, size)])

    def all_reduce(self, last: bool) -> None:
        """One bucket on the communication stream, after the gradients; the optimizer waits for the last."""
        p, job = self.p, self.job
        self.calls += 1
        key = f"bucket{self.calls}"
        elements = round(job.bucket_mb * 5e5) or round(job.transfer_us * 60_000)
        about = {
            "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
            "Group size": job.world, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
            "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(job.world))),
        }  # fmt: skip
        duration = round(job.transfer_us * US * self.p.random.uniform(0.97, 1.03))
        work = Work(
            ALL_REDUCE, duration, 20, api="cudaLaunchKernelExC", call=("dp", key), members=job.world,
            args={**about, "Seq": self.calls},
        )  # fmt: skip
        with (
            p.row("cpu_op", "c10d::allreduce_"),
            p.row("cpu_op", "record_param_comms", **about, Rank=self.rank),
        ):
            p.work(15)
            with p.row("user_annotation", "nccl:all_reduce"):
                p.record(key, 7)
                p.wait(key, 20)
                p.launch(work, us=9)
                if last:
                    p.record(f"reduced{self.number}", 20)

    def optimizer(self) -> None:
        p = self.p
        with (
            self.frames(
                "torch/optim/lr_scheduler.py(149): wrapper", "torch/optim/optimizer.py(517): wrapper"
            ),
            p.row("user_annotation", "Optimizer.step#AdamW.step"),
            p.row("cpu_op", "aten::_fused_adamw_"),
        ):
            p.work(60)
            for _ in range(6):
                p.work(10)
                p.launch(Work(ADAM, self.lasting(0.8)))
        with p.row("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad"):
            p.work(90)

    def replay(self) -> None:
        """Forward and backward as one launch of a graph."""
        nodes: list[Work] = []
        for layer in range(self.job.layers):
            for number in range(22):
                name, weight = self.gemm(1.0) if number % 3 else self.small(ADD, 0.4)
                node = {"graph id": 1, "graph node id": 100 * layer + number}
                nodes.append(Work(name, self.lasting(weight), api="cudaGraphLaunch", args=node))
        with self.frames("torch/cuda/graphs.py(122): replay"):
            self.p.work(20)
            self.p.launch(*nodes, us=60)

    def save(self) -> None:
        rows, copies = self.job.checkpoint
        if copies:
            with self.rows(rows):
                for copy in copies:
                    for _ in range(copy.count):
                        with self.p.row("cpu_op", "aten::to"), self.p.row("cpu_op", "aten::copy_"):
                            self.copy(copy)
                        self.p.work(300)

    # -- pipeline --------------------------------------------------------------------------------------

    def pipeline(self) -> None:
        """One forward, one backward: each stage warms up with as many microbatches as follow it."""
        job = self.job
        self.batch()
        self.pause("forward")
        ahead = min(job.stages - self.rank - 1, job.microbatches)
        order = [("f", i) for i in range(ahead)]
        for i in range(job.microbatches - ahead):
            order += [("f", ahead + i), ("b", i)]
        order += [("b", i) for i in range(job.microbatches - ahead, job.microbatches)]
        for kind, micro in order:
            if kind == "f":
                self.exchange("recv", self.rank - 1, "activation", micro)
                self.forward()
                self.exchange("send", self.rank + 1, "activation", micro)
            else:
                self.exchange("recv", self.rank + 1, "gradient", micro)
                with self.engine():
                    for _ in range(job.layers):
                        self.back_layer()
                self.exchange("send", self.rank - 1, "gradient", micro)
        self.optimizer()
        if job.sync:
            self.item("train.py(131): log_loss")
        self.pause("logging")

    def exchange(self, what: str, peer: int, payload: str, micro: int) -> None:
        """A send or a receive on its own stream; compute waits for what it receives."""
        if not 0 <= peer < self.job.stages:
            return
        p = self.p
        pair = tuple(sorted((self.rank, peer)))
        event = f"{what}{payload}{self.number}.{micro}"
        about = {
            "Collective name": what, "In msg nelems": 8388608, "Out msg nelems": 8388608,
            "Group size": self.job.world, "dtype": "BFloat16", "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.job.world))),
            "Src Rank": self.rank if what == "send" else peer,
            "Dst Rank": peer if what == "send" else self.rank,
        }  # fmt: skip
        stream = {"sendactivation": 21, "recvactivation": 22, "sendgradient": 23, "recvgradient": 24}
        work = Work(
            SEND_RECV, 12 * US, stream[what + payload], api="cudaLaunchKernelExC",
            call=("pp", pair, payload, self.number, micro), members=2, args=about,
        )  # fmt: skip
        name = "c10d::send" if what == "send" else "c10d::recv_"
        with p.row("cpu_op", name), p.row("cpu_op", "record_param_comms", **about, Rank=self.rank):
            p.work(10)
            with p.row("user_annotation", f"nccl:{what} {self.rank}->{peer}"):
                p.record(event, 7)
                p.wait(event, work.stream)
                p.launch(work, us=9)
        if what == "recv":
            p.record(f"got{event}", work.stream)
            p.wait(f"got{event}", 7)
