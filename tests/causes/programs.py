"""Steps of ranks on made-up machines, as the profiler would see them, with collectives in any groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from acceptance.kineto_files import Recording, written
from acceptance.simulator import MS, US, Machine, Program, Row, Work

GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
UPDATE = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float> >"
)
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MAIN, APART = 7, 30  # streams
FIRST = 2  # recorded step
# Kind: what the process group, the kernel and the operator call it.
KINDS = {
    "all-gather": ("_allgather_base", "AllGather_RING_LL", "c10d::_allgather_base_"),
    "reduce-scatter": (
        "_reduce_scatter_base",
        "ReduceScatter_Sum_bf16_RING_LL",
        "c10d::_reduce_scatter_base_",
    ),
    "all-reduce": ("allreduce", "AllReduce_Sum_bf16_RING_LL", "c10d::allreduce_"),
}


@dataclass(frozen=True)
class Group:
    name: str
    ranks: tuple[int, ...]
    stream: int = 20


class Step:
    """Writes the program of one rank; kernels take `speed` times as long."""

    def __init__(self, rank: int, speed: float = 1.0, stacks: bool = False) -> None:
        self.rank, self.speed, self.stacks = rank, speed, stacks
        self.p = Program(str(rank), noise=0.02)
        self.calls: dict[str, int] = {}
        self.events = 0
        self.passes: list[int] = []

    @contextmanager
    def frame(self, name: str) -> Generator[None]:
        if self.stacks:
            with self.p.row("python_function", name):
                yield
        else:
            yield

    def loads(self, ms: float = 0.3) -> None:
        with self.p.row("user_annotation", LOADER):
            self.p.work(1000 * ms)

    def launches(self, name: str, kernel: str, us: float, **args: object) -> None:
        with self.p.row("cpu_op", name, **args):
            self.p.work(7)
            self.p.launch(Work(kernel, round(us * US * self.speed)), us=4)
            self.p.work(3)

    def forward(self, us: float) -> None:
        self.events += 1
        self.passes.append(self.events)
        marks = {"Sequence number": self.events, "Fwd thread id": 0}
        with self.p.row("cpu_op", "aten::linear"):
            self.launches("aten::mm", GEMM, us, **marks)

    @contextmanager
    def backward(self) -> Generator[None]:
        with self.p.thread("pt_autograd_0"):
            yield

    def back(self, us: float) -> None:
        marks = {"Sequence number": self.passes.pop(), "Fwd thread id": 1}
        node = "MmBackward0"
        with (
            self.p.row("cpu_op", f"autograd::engine::evaluate_function: {node}", **marks),
            self.p.row("cpu_op", node, **marks),
        ):
            for _ in range(2):
                self.launches("aten::mm", GEMM, us)

    def updates(self) -> None:
        with self.p.row("user_annotation", "Optimizer.step#AdamW.step"):
            self.launches("aten::_fused_adamw_", UPDATE, 100)

    def copies(self, mb: float, stream: int = APART) -> None:
        """To pinned memory, 20 GB/s, for which nothing waits."""
        size = round(mb * 1e6)
        args = {"bytes": size, "memory bandwidth (GB/s)": 20.0}
        name = "Memcpy DtoH (Device -> Pinned)"
        with self.p.row("cpu_op", "aten::copy_"):
            self.p.launch(Work(name, size // 20, stream, "gpu_memcpy", "cudaMemcpyAsync", args=args), us=6)

    def reads(self) -> None:
        with self.p.row("cpu_op", "aten::item"), self.p.row("cpu_op", "aten::_local_scalar_dense"):
            self.p.work(4)
            args = {"bytes": 4, "memory bandwidth (GB/s)": 0.003}
            work = Work(
                "Memcpy DtoH (Device -> Pinned)", 1500, MAIN, "gpu_memcpy", "cudaMemcpyAsync", args=args
            )
            self.p.launch(work, us=6)
            self.p.synchronise("cudaStreamSynchronize", MAIN)

    def sends(self, kind: str, group: Group, us: float, mb: float = 16, waits: bool = True) -> str:
        """A collective after what was launched; what is computed next waits for it, or for the event."""
        said, kernel, operator = KINDS[kind]
        nth = self.calls[group.name] = self.calls.get(group.name, 0) + 1
        whole, part = round(mb * 5e5), round(mb * 5e5) // len(group.ranks)
        moved = {"all-gather": (part, whole), "reduce-scatter": (whole, part)}.get(kind, (whole, whole))
        about = {
            "Collective name": said, "In msg nelems": moved[0], "Out msg nelems": moved[1],
            "Group size": len(group.ranks), "dtype": "BFloat16", "Process Group Name": group.name,
            "Process Group Description": "undefined", "Process Group Ranks": str(list(group.ranks)),
            "Seq": nth,
        }  # fmt: skip
        self.events += 1
        began, done = f"e{self.events}", f"d{self.events}"
        work = Work(
            f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", round(us * US), group.stream,
            api="cudaLaunchKernelExC", call=(group.name, nth), members=len(group.ranks), args=about,
        )  # fmt: skip
        with (
            self.p.row("cpu_op", operator),
            self.p.row("cpu_op", "record_param_comms", **about, Rank=self.rank),
        ):
            self.p.work(12)
            self.p.record(began, MAIN)
            self.p.wait(began, group.stream)
            self.p.launch(work, us=9)
            self.p.record(done, group.stream)
        if waits:
            self.p.wait(done, MAIN)
        return done


def recorded(
    folder: Path,
    step: Callable[[Step, int], None],
    world: int = 1,
    steps: int = 5,
    *,
    speed: Mapping[int, float] = {},
    stacks: bool = False,
    since: Mapping[int, int] = {},
    groups: Sequence[Group] = (),
    beside: Callable[[Machine], None] | None = None,
) -> Path:
    """The traces of a job of `world` ranks; `since` is the first recorded step of ranks that begin later."""
    written_by = [Step(rank, speed.get(rank, 1.0), stacks) for rank in range(world)]
    for each in written_by:
        with each.frame("train.py(1): <module>"):
            each.p.work(300)
            for number in range(FIRST + steps):
                each.p.step(number)
                with each.p.row("user_annotation", f"ProfilerStep#{number}"):
                    step(each, number)
                each.p.work(20)
            each.p.synchronise("cudaDeviceSynchronize")
    machine = Machine([each.p.tape for each in written_by])
    machine.run()
    if beside:
        beside(machine)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in machine.ranks:
        first = since.get(rank.rank, FIRST)
        file = written(rank, Recording(first, steps, world, stacks=stacks), folder)
        mine = [group for group in groups if rank.rank in group.ranks]
        if mine:
            told = ", ".join(
                json.dumps({"pg_name": g.name, "pg_desc": "undefined", "ranks": [*g.ranks]}) for g in mine
            )
            file.write_text(file.read_text().replace('"pg_config": [', f'"pg_config": [{told}, ', 1))
    return folder


def begins(machine: Machine, rank: int, number: int) -> int:
    """When a step was marked on a rank, ns."""
    return next(row.start for row in machine.ranks[rank].rows if row.name == f"ProfilerStep#{number}")


def thread_beside(machine: Machine, rank: int, name: str, spans: Sequence[tuple[int, float]]) -> None:
    """Another thread is in a function for so many ms from the beginnings of these steps on."""
    for number, ms in spans:
        start = begins(machine, rank, number)
        row = Row("python_function", name, "saver", start, start + round(ms * MS), {}, number)
        machine.ranks[rank].rows.append(row)
