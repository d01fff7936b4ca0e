"""Small training jobs on a GPU, one after the other in one process, each with one fault or none.

    lostflops record --step-on gpu_step:ended --steps 9-11 --every 14 -- python gpu_job.py --times times.json

Each job takes PERIOD steps, so that window N of the recording is job N. `times.json` says which that was, how
long its recorded steps took by the clock, and which part of them the fault took where that is known.
"""

import argparse
import gc
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_step import ended
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

PERIOD, FIRST, LAST = 14, 9, 11
WORDS = 8192
Step = Callable[[int], None]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, how: str) -> None:
        super().__init__()
        self.heads, self.how = heads, how
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.how == "attention":
            scores = q @ k.transpose(-1, -2) / (width / self.heads) ** 0.5
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            attended = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        else:
            attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        if self.how == "mask":  # made on the host, from memory that is not pinned, for each layer
            x = x * torch.full((batch, length, 1), 0.5).to(x.device, x.dtype)
        if self.how == "nonzero":
            x = x + 0 * x[x[..., 0] > 0].sum()
        if self.how == "synchronize":
            torch.cuda.synchronize()
        if self.how == "item":
            assert x.abs().max().item() < 1e30
        return x + self.down(gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    def __init__(self, depth: int = 6, width: int = 1024, how: str = "", words: int = WORDS) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, width // 64, how) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.how == "recompute" else block(x)  # pyright: ignore
        logits = self.head(x)
        if self.how == "double":
            logits = logits.double()
        if self.how == "metrics":
            logits.detach().cpu()
        return cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Samples(Dataset[Tensor]):
    """Token sequences; making one takes `ms` of Python."""

    def __init__(self, shape: tuple[int, ...], ms: float) -> None:
        self.shape, self.ms = shape, ms

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        spin(self.ms)
        return torch.full(self.shape, index % WORDS)


def spin(ms: float) -> None:
    until = time.perf_counter() + ms / 1000
    while time.perf_counter() < until:
        sum(range(2000))


class Job:
    """A model in bf16, a fused optimizer, a batch that is on the GPU already; what differs is said."""

    def __init__(self, undo: ExitStack, **how: Any) -> None:
        self.undo = undo
        torch.manual_seed(0)
        dtype = how.pop("dtype", torch.bfloat16)
        shape = how.pop("shape", (8, 512))
        optimizer = how.pop("optimizer", {"fused": True})
        with torch.device("cuda"):
            self.model = Model(**how).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, **optimizer)
        self.batch = torch.randint(WORDS, shape, device="cuda")
        self.forward: Callable[[Tensor], Tensor] = self.model

    def train(self, batch: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.forward(batch)
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self, number: int) -> None:
        del number
        self.train(self.batch)


def loaded(undo: ExitStack, workers: int, ms: float, pinned: bool = True) -> Step:
    job = Job(undo)
    loader = DataLoader(Samples((512,), ms / 8), batch_size=8, num_workers=workers, pin_memory=pinned)
    batches = iter(loader)
    undo.callback(lambda: getattr(batches, "_shutdown_workers", lambda: None)())
    return lambda _: void(job.train(next(batches).to("cuda", non_blocking=pinned)))


def void(_: Any) -> None: ...


def beside(undo: ExitStack, work: Callable[[Job, int], None], **how: Any) -> Step:
    """A step with something before it."""
    job = Job(undo, **how)

    def step(number: int) -> None:
        work(job, number)
        job.step(number)

    return step


def finite(job: Job, _: int) -> None:
    for each in job.model.parameters():
        if each.grad is not None and not torch.isfinite(each.grad).all():
            raise ValueError


def pageable(undo: ExitStack) -> Step:
    job, images = Job(undo), torch.ones(128 << 20, dtype=torch.float32)  # 512 MiB

    def step(number: int) -> None:
        there = images.to("cuda")
        job.step(number)
        del there

    return step


def pinned_alone(undo: ExitStack) -> Step:
    """Pinned copies on the stream that computes: fast, but nothing runs beside them."""
    job, images = Job(undo), torch.ones(128 << 20, dtype=torch.float32).pin_memory()

    def step(number: int) -> None:
        there = images.to("cuda", non_blocking=True)
        job.step(number)
        del there

    return step


def saved(undo: ExitStack) -> Step:
    folder = undo.enter_context(tempfile.TemporaryDirectory())
    return beside(undo, lambda job, _: torch.save(job.model.state_dict(), f"{folder}/last.pt"), depth=2)


def on_cpu(undo: ExitStack) -> Step:
    job = Job(undo)

    def step(_: int) -> None:
        job.optimizer.zero_grad()
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = job.model(job.batch)
        loss.backward()
        job.optimizer.step()

    return step


def collected(undo: ExitStack) -> Step:
    heap = [{"number": [n]} for n in range(200_000)]
    undo.callback(heap.clear)
    return beside(undo, lambda *_: void(gc.collect()))


def autocast(undo: ExitStack) -> Step:
    job = Job(undo, dtype=torch.float32)

    def forward(batch: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return job.model(batch)

    job.forward = forward
    return job.step


def tf32(undo: ExitStack) -> Step:
    torch.backends.cuda.matmul.allow_tf32 = True
    undo.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", False)
    return Job(undo, dtype=torch.float32).step


def compiled(undo: ExitStack, shapes: bool) -> Step:
    """With `shapes`, every step has a length of its own, for which everything is compiled again."""
    job = Job(undo, depth=2 if shapes else 4)
    torch._dynamo.reset()
    undo.callback(torch._dynamo.reset)
    if shapes:
        torch._dynamo.config.recompile_limit = 1000
        torch._dynamo.config.accumulated_recompile_limit = 1000
        job.forward = torch.compile(job.model, backend="aot_eager", dynamic=False)
        return lambda number: void(job.train(job.batch[:, : 512 - 8 * number]))
    job.forward = torch.compile(job.model)
    return job.step


def graph(undo: ExitStack, whole: bool) -> Step:
    """Forward and backward captured; with `whole`, the optimizer as well."""
    job = Job(undo, optimizer={"fused": True, "capturable": True})
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            job.optimizer.zero_grad(set_to_none=True)
            job.model(job.batch).backward()
    torch.cuda.current_stream().wait_stream(aside)
    job.optimizer.zero_grad(set_to_none=True)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        job.model(job.batch).backward()
    small = torch.optim.SGD([nn.Parameter(torch.zeros(1, device="cuda"))], lr=0.0)

    def step(_: int) -> None:
        captured.replay()
        (small if whole else job.optimizer).step()

    return step


def two_threads(undo: ExitStack) -> Step:
    """Two models, each launched by a thread of its own on a stream of its own."""
    job, other = Job(undo, shape=(2, 64)), Job(undo, shape=(2, 64))

    def second() -> None:
        with torch.cuda.stream(stream):
            other.optimizer.zero_grad()
            other.model(other.batch).backward()

    stream = torch.cuda.Stream()

    def step(number: int) -> None:
        thread = threading.Thread(target=second)
        thread.start()
        job.step(number)
        thread.join()

    return step


def accumulated(undo: ExitStack) -> Step:
    """Sixteen micro-batches of one short sequence each, where one batch of all would do."""
    job = Job(undo, shape=(16, 64))

    def step(_: int) -> None:
        job.optimizer.zero_grad()
        for part in job.batch.split(1):
            (job.model(part) / 16).backward()
        job.optimizer.step()

    return step


def slow_kernel(undo: ExitStack) -> Step:
    return beside(undo, lambda *_: torch.cuda._sleep(20_000_000))


def unfused(undo: ExitStack) -> Step:
    """A chain of operations that each read and write everything: bound by memory."""
    job, data = Job(undo, depth=1), torch.ones(64 << 20, device="cuda")

    def step(number: int) -> None:
        x = data
        for _ in range(12):
            x = (x * 1.01 + 0.5).tanh()
        job.step(number)

    return step


def ema(undo: ExitStack) -> Step:
    job = Job(undo)
    kept = [each.detach().clone() for each in job.model.parameters()]

    def step(number: int) -> None:
        job.step(number)
        for mean, each in zip(kept, job.model.parameters(), strict=True):
            mean.mul_(0.999).add_(each.detach(), alpha=0.001)

    return step


def lora_like(undo: ExitStack) -> Step:
    """Low-rank updates beside frozen layers, with many small products."""
    job = Job(undo, shape=(1, 64))
    pairs = [(torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16), nn.Parameter(
        torch.zeros(1024, 8, device="cuda", dtype=torch.bfloat16))) for _ in range(64)]  # fmt: skip
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)

    def step(number: int) -> None:
        sum(linear(linear(x, a), b).sum() for a, b in pairs).backward()  # pyright: ignore
        job.step(number)

    return step


def cases() -> Iterator[tuple[str, Callable[[ExitStack], Step]]]:
    """Each name, and what sets it up; what it sets is undone by the stack."""
    yield "healthy", lambda undo: Job(undo).step
    yield "healthy, large", lambda undo: Job(undo, depth=12, shape=(16, 1024)).step
    yield "loader, no workers", lambda undo: loaded(undo, 0, 40)
    yield "loader, two workers", lambda undo: loaded(undo, 2, 80)
    yield "healthy loader", lambda undo: loaded(undo, 4, 8)
    yield "launch-bound", lambda undo: Job(undo, depth=24, shape=(1, 32)).step
    yield "micro-batches", accumulated
    yield "two threads", two_threads
    yield "item in each layer", lambda undo: Job(undo, how="item").step
    yield "isfinite of each gradient", lambda undo: beside(undo, finite)
    yield "nonzero in each layer", lambda undo: Job(undo, how="nonzero").step
    yield "synchronize in each layer", lambda undo: Job(undo, how="synchronize").step
    yield "masks from the host", lambda undo: Job(undo, how="mask").step
    yield "pageable input", pageable
    yield "pinned input on the stream", pinned_alone
    yield "logits to the host", lambda undo: Job(undo, how="metrics").step
    yield "save_on_cpu", on_cpu
    yield "recomputation", lambda undo: Job(undo, how="recompute").step
    yield "attention by hand", lambda undo: Job(undo, how="attention", shape=(4, 2048)).step
    yield "fp32", lambda undo: Job(undo, dtype=torch.float32).step
    yield "tf32", tf32
    yield "autocast", autocast
    yield "double logits", lambda undo: Job(undo, how="double").step
    yield "single-tensor optimizer", lambda undo: Job(undo, optimizer={"foreach": False}).step
    yield "foreach optimizer", lambda undo: Job(undo, optimizer={"foreach": True}).step
    yield "moving average", ema
    yield "low-rank", lora_like
    yield "large vocabulary", lambda undo: Job(undo, depth=1, words=128_000).step
    yield "unfused", unfused
    yield "slow kernel", slow_kernel
    yield "sleep", lambda undo: beside(undo, lambda *_: time.sleep(0.03))
    yield "loop", lambda undo: beside(undo, lambda *_: spin(30))
    yield "gc", collected
    yield "save", saved
    yield "empty_cache", lambda undo: beside(undo, lambda *_: torch.cuda.empty_cache())
    yield "graph", lambda undo: graph(undo, False)
    yield "graph of everything", lambda undo: graph(undo, True)
    yield "compiled", lambda undo: compiled(undo, False)
    yield "a new shape in each step", lambda undo: compiled(undo, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=Path, required=True)
    parser.add_argument("--only", nargs="+", help="these cases")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no other case begins")
    given = parser.parse_args()
    random.seed(0)
    began = time.perf_counter()
    found: list[dict[str, Any]] = []
    for name, make in cases():
        if (given.only and name not in given.only) or time.perf_counter() - began > given.seconds:
            continue
        found.append({"case": name, **ran(make)})
        given.times.write_text(json.dumps(found))
        print(f"{time.perf_counter() - began:6.1f} s  {name}: {found[-1].get('failed', 'ran')}", flush=True)


def ran(make: Callable[[ExitStack], Step]) -> dict[str, Any]:
    """One case, which takes PERIOD steps whatever happens to it."""
    ends: list[float] = []
    found: dict[str, Any] = {}
    with ExitStack() as undo:
        try:
            step = make(undo)
            torch.cuda.synchronize()
            for number in range(PERIOD):
                step(number)
                ended()
                ends.append(time.perf_counter())
            torch.cuda.synchronize()
        except Exception as error:  # the others go on
            found["failed"] = f"{type(error).__name__}: {error}"[:300]
        step = None
    for _ in range(PERIOD - len(ends)):
        ended()
    found |= {"step_ns": [round(1e9 * (b - a)) for a, b in pairwise(ends)]}
    found |= {"peak_bytes": torch.cuda.max_memory_allocated()}
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return found


if __name__ == "__main__":
    main()
