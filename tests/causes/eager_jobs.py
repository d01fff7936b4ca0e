"""Steps of eager PyTorch on one GPU, written as the profiler would see them: the operators of a small
transformer, its backward pass on the autograd thread, and an optimizer, each with knobs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lostflops
from acceptance.kineto_files import Recording, written
from acceptance.simulator import US, Args, Machine, Program, Work

STEPS = 4
GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
SMALL = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
MULTI = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "{}TensorListMetadata<4>, at::native::(anonymous namespace)::{}>(long)"
)
FUSED = MULTI.format("FusedOptimizer", "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>")
FOREACH = MULTI.format("", "BinaryOpListAlphaFunctor<float, 2, 2, 0>")
SINGLE = (
    "mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_",
)  # fmt: skip


@dataclass
class Eager:
    """What a step does; times in µs. `of_optimizer` is 'fused', 'foreach', 'single' or None."""

    layers: int = 12
    gemm_us: float = 200.0
    small_us: float = 20.0
    host_us: float = 14.0  # of an operator on the CPU, its launch included
    micro_batches: int = 1
    of_optimizer: str | None = "fused"
    optimizer: str = "AdamW"
    update_us: float = 2.0
    parameters: int = 24
    reads: bool = False  # the loss is read at the end of each step
    stacks: bool = False
    seed: str = "0"
    before: Callable[[EagerStep], None] | None = None
    each_layer: Callable[[EagerStep], None] | None = None
    linear: Callable[[EagerStep, Sequence[Sequence[int]]], None] | None = None
    loss: Callable[[EagerStep], None] | None = None
    loss_back: Callable[[EagerStep], None] | None = None
    between: Callable[[EagerStep], None] | None = None  # backward and optimizer
    after: Callable[[EagerStep], None] | None = None
    dims: Sequence[Sequence[int]] = field(default_factory=lambda: [[4096, 1024], [1024, 1024]])
    type: str = "c10::BFloat16"


class EagerStep:
    """Writes the program of one rank, step by step."""

    def __init__(self, job: Eager) -> None:
        self.job, self.p = job, Program(job.seed, noise=0.02)
        self.sequence = 0
        self.to_go_back: list[int] = []  # operators whose gradients are still to be computed

    # -- rows ------------------------------------------------------------------------------------------

    @contextmanager
    def frames(self, *names: str) -> Generator[None]:
        if not names or not self.job.stacks:
            yield
            return
        with self.p.row("python_function", names[0]), self.frames(*names[1:]):
            yield

    def operator(
        self, name: str, *kernels: tuple[str, float], within: Sequence[str] = (), **args: object
    ) -> None:
        """An operator, in others, that launches kernels of so many µs."""
        if within:
            with self.p.row("cpu_op", within[0]):
                self.operator(name, *kernels, within=within[1:], **args)
            return
        cost = self.job.host_us
        with self.p.row("cpu_op", name, **args):
            for kernel, us in kernels:
                self.p.work(0.5 * cost)
                self.p.launch(Work(kernel, round(us * US)), us=0.3 * cost)
            self.p.work(0.2 * cost if kernels else 0.5 * cost)

    def cpu(self, name: str, us: float) -> None:
        """An operator that computes on the CPU."""
        with self.p.row("cpu_op", name):
            self.p.work(us)

    def in_graph(self) -> Args:
        """What marks an operator of the forward pass that has a gradient."""
        self.sequence += 1
        self.to_go_back.append(self.sequence)
        return {"Sequence number": self.sequence, "Fwd thread id": 0}

    def shaped(self, dims: Sequence[Sequence[int]], of: str | None = None) -> Args:
        return {"Input Dims": list(map(list, dims)), "Input type": [of or self.job.type] * len(dims)}

    def copy(
        self, direction: str, mb: float, memory: str = "Pageable", gb_per_s: float = 10, waits: bool = True
    ) -> None:
        size = max(4, round(mb * 1e6))
        there = f"{memory} -> Device" if direction == "HtoD" else f"Device -> {memory}"
        work = Work(
            f"Memcpy {direction} ({there})", max(1500, round(size / gb_per_s)), 7, "gpu_memcpy",
            "cudaMemcpyAsync", args={"bytes": size, "memory bandwidth (GB/s)": gb_per_s},
        )  # fmt: skip
        self.p.launch(work, us=6, blocking=memory == "Pageable")
        if waits:
            self.p.synchronise("cudaStreamSynchronize", 7)

    def item(self, *within: str) -> None:
        """`.item()`."""
        if within:
            with self.p.row("cpu_op", within[0]):
                self.item(*within[1:])
            return
        with self.p.row("cpu_op", "aten::item"), self.p.row("cpu_op", "aten::_local_scalar_dense"):
            self.p.work(4)
            self.copy("DtoH", 4e-6, "Pinned")

    # -- a step ----------------------------------------------------------------------------------------

    def linear(self) -> None:
        if self.job.linear:
            self.job.linear(self, self.job.dims)
            return
        dims = {**self.shaped(self.job.dims), **self.in_graph()}
        self.operator("aten::mm", (GEMM, self.job.gemm_us), within=("aten::linear", "aten::matmul"), **dims)

    def forward(self) -> None:
        job = self.job
        self.to_go_back.clear()
        self.operator("aten::embedding", (SMALL.format("Gather"), job.small_us))
        for layer in range(job.layers):
            with self.frames(f"nn.Module: Block_{layer}", "model.py(150): forward"):
                self.p.work(2 * job.host_us)
                if job.each_layer:
                    job.each_layer(self)
                self.operator("aten::native_layer_norm", (SMALL.format("Norm"), job.small_us))
                self.linear()
                gelu = SMALL.format("GeluCUDAKernelImpl")
                self.operator("aten::gelu", (gelu, job.small_us), **self.in_graph())
                self.linear()
                self.operator("aten::add", (SMALL.format("CUDAFunctor_add<float>"), job.small_us))
        if job.loss:
            job.loss(self)

    @contextmanager
    def node(self, name: str) -> Generator[None]:
        number = self.to_go_back.pop() if self.to_go_back else 0
        args = {"Sequence number": number, "Fwd thread id": 1}
        with (
            self.p.row("cpu_op", f"autograd::engine::evaluate_function: {name}", **args),
            self.p.row("cpu_op", name, **args),
        ):
            yield

    def backward(self) -> None:
        job = self.job
        with (
            self.frames(
                "torch/_tensor.py(630): backward",
                "torch/autograd/graph.py(829): _engine_run_backward",
                "<built-in method run_backward of torch._C._EngineBase object at 0x7f0bd15e6cd0>",
            ),
            self.p.thread("pt_autograd_0"),
        ):
            if job.loss_back:
                job.loss_back(self)
            for _ in range(job.layers):
                for _ in range(2):
                    with self.node("MmBackward0"):
                        for _ in range(2):
                            self.operator("aten::mm", (GEMM, job.gemm_us), **self.shaped(job.dims))
                    with self.node("GeluBackward0"):
                        self.operator("aten::gelu_backward", (SMALL.format("GeluBackward"), job.small_us))

    def update(self) -> None:
        job, p = self.job, self.p
        if job.of_optimizer is None:
            return
        cost = job.host_us
        with (
            self.frames("torch/optim/optimizer.py(517): wrapper"),
            p.row("user_annotation", f"Optimizer.step#{job.optimizer}.step"),
        ):
            if job.of_optimizer == "fused":
                with p.row("cpu_op", "aten::_fused_adamw_"):
                    for _ in range(3):
                        p.work(2 * cost)
                        p.launch(Work(FUSED, round(20 * job.update_us * US)))
            if job.of_optimizer == "foreach":
                for name in SINGLE:
                    self.operator(f"aten::_foreach_{name}", *[(FOREACH, 5 * job.update_us)] * 3)
            if job.of_optimizer == "single":
                for _ in range(job.parameters):
                    p.work(cost)
                    for name in SINGLE:
                        self.operator(f"aten::{name}", (SMALL.format(name), job.update_us))

    def step(self, number: int) -> None:
        job, p = self.job, self.p
        if job.before:
            job.before(self)
        with p.row("user_annotation", f"Optimizer.zero_grad#{job.optimizer}.zero_grad"):
            p.work(10)
        for _ in range(job.micro_batches):
            self.forward()
            self.backward()
        if job.between:
            job.between(self)
        self.update()
        if job.reads:
            self.item()
        if job.after:
            job.after(self)

    def train(self) -> None:
        p = self.p
        with self.frames("train.py(1): <module>", "train.py(112): main"):
            p.work(300)
            for number in range(2 + STEPS):
                p.step(number)
                with p.row("user_annotation", f"ProfilerStep#{number}"):
                    self.step(number)
                p.work(20)
            p.synchronise("cudaDeviceSynchronize")


def recorded(folder: Path, job: Eager) -> Path:
    """The trace of a job that ran alone on one GPU."""
    steps = EagerStep(job)
    steps.train()
    machine = Machine([steps.p.tape])
    machine.run()
    folder.mkdir(parents=True, exist_ok=True)
    return written(machine.ranks[0], Recording(2, STEPS, stacks=job.stacks, seed=job.seed), folder)


def step_of(recording: Path) -> float:
    """The mean step of a recorded job, ns, as the page has it."""
    table = lostflops.ask(recording, "step_ledger")
    return int(table["ns"].sum()) / table["step"].n_unique()
