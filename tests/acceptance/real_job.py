"""A small training job on the processor, with one fault or none; it writes how long steps and fault took.

python real_job.py --fault sleep --times times.json
"""

import argparse
import gc
import json
import logging
import os
import random
import time
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.checkpoint import checkpoint

import lostflops
from lostflops.lab.exercises.scripts.model import Wait

STEPS = 22
OUTLIER = 12
THREADS = 16  # more than the cores
LINE_MS, LINES = 5, 8  # of a slow log, in a step
EACH_STEP = ("sleep", "loop", "gc", "save", "logging", "slow-log")


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random samples; making one takes `ms` of Python, or of waiting where they are read `from_far`."""

    def __init__(self, shape: tuple[int, ...], ms: float, steps: int, from_far: bool = False) -> None:
        self.shape, self.ms, self.steps, self.from_far = shape, ms, steps, from_far

    def __len__(self) -> int:
        return 8 * self.steps + 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        (time.sleep(self.ms / 1000) if self.from_far else spin(self.ms))
        return torch.full(self.shape, 0.01 * index), torch.tensor(index % 10)


def spin(ms: float) -> None:
    """Python that computes for a while."""
    until = time.perf_counter() + ms / 1000
    total = 0
    while time.perf_counter() < until:
        total += sum(range(20_000))


def mlp(width: int = 1024) -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), (width,)


class Waiting(logging.FileHandler):
    """A log file on a slow disk: each line takes a while to be written."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        time.sleep(LINE_MS / 1000)


class Again(nn.Module):
    """A block whose activations are not kept: its forward pass runs again in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)  # pyright: ignore


def deep(layers: int = 100, width: int = 64) -> tuple[nn.Module, tuple[int, ...]]:
    """Many small layers: gradients in many small pieces."""
    body = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*body, nn.Linear(width, 10)), (width,)


def steady(ms: float, layers: int = 4, width: int = 768) -> tuple[nn.Module, tuple[int, ...]]:
    """Layers that take a fixed time each, on a machine of any speed and load; twice that backward."""
    body = [layer for _ in range(layers) for layer in (nn.Linear(width, width), Steady(ms))]
    return nn.Sequential(*body, nn.Linear(width, 10)), (width,)


class Steady(nn.Module):
    def __init__(self, ms: float) -> None:
        super().__init__()
        self.ms = ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Wait.apply(torch.tanh(x), self.ms, 2 * self.ms)  # pyright: ignore


def waits_at_once(group: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduces a bucket and waits for it, so that nothing runs beside it."""
    torch.distributed.all_reduce(bucket.buffer())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer().div_(torch.distributed.get_world_size()))
    return done


def cnn() -> tuple[nn.Module, tuple[int, ...]]:
    channels = (3, 24, 32, 32)
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), (3, 48, 48)


class Job:
    """Trains, and notes when each step ended and what the fault took of it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.fault: str = given.fault
        self.steps: int = given.steps
        self.rank = int(os.environ.get("RANK", 0))
        self.faulty = given.rank is None or given.rank == self.rank
        if given.fault == "none":
            self.faulty = False
        self.name: str = given.function
        self.ends: list[float] = []
        self.busy: list[float] = []  # processor time and planned sleep so far, at each step's end
        self.slept = 0.0
        self.lost: list[float] = []
        self.heap: list[Any] = []
        self.kept = Path(given.times).with_suffix(".pt")

    def planted(self, ms: float) -> None:
        """The fault of this step, under the name of a function that the page cannot know."""
        begun = time.perf_counter()
        made_up: dict[str, Any] = {"self": self, "ms": ms}
        code = f"def {self.name}(job, ms):\n    return job.pause(ms)\n"
        exec(compile(code, "lessons.py", "exec"), made_up)
        made_up[self.name](self, ms)
        self.lost.append(time.perf_counter() - begun)

    def pause(self, ms: float) -> None:
        if self.fault == "sleep":
            time.sleep(ms / 1000)
            self.slept += ms / 1000
        elif self.fault in ("loop", "outlier"):
            spin(ms)
        elif self.fault == "gc":
            gc.collect()
        elif self.fault == "save":
            # One file, as the last checkpoint is: to delete a file takes longer here than to write it.
            until = time.perf_counter() + ms / 1000
            torch.save(self.model.state_dict(), self.kept)
            while time.perf_counter() < until:
                torch.save(self.model.state_dict(), self.kept)
        elif self.fault == "logging":
            for number in range(int(8 * ms)):
                logging.info("step %d, loss %f", number, ms)
        elif self.fault == "slow-log":
            for number in range(LINES):
                logging.info("layer %d, gradient %f", number, ms)

    def meet(self) -> None:
        """Look at each gradient, and with the fault wait until all ranks have, so that they stop together."""
        for parameter in self.model.parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all().item():
                raise SystemExit("a gradient is not finite")
            if self.fault == "barriers":
                torch.distributed.barrier()

    def train(self, given: argparse.Namespace) -> None:
        torch.manual_seed(0)
        random.seed(0)
        waits = partial(steady, given.layer_ms, width=given.width)
        made = {"cnn": cnn, "mlp": mlp, "deep": deep, "steady": waits}
        self.model, shape = made[given.model]()
        if self.fault == "recompute":
            self.model = nn.Sequential(Again(self.model))
        if self.fault == "gc":
            self.heap = [{"number": [n]} for n in range(150_000)]
        log = Path(given.times).with_suffix(".log")
        handler = Waiting(log) if self.fault == "slow-log" else logging.FileHandler(log)
        logging.basicConfig(handlers=[handler], level=logging.INFO)
        wrapped: nn.Module = self.model
        if "WORLD_SIZE" in os.environ:
            torch.distributed.init_process_group("gloo")
            bucket = {"buckets": 0.01, "no-overlap": 1.0, "one-bucket": 1000.0}.get(
                self.fault, given.bucket_mb
            )
            wrapped = nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=bucket)
            if self.fault == "no-overlap":
                wrapped.register_comm_hook(None, waits_at_once)
        if self.fault == "compile":
            torch._dynamo.config.recompile_limit = 1000
            torch._dynamo.config.accumulated_recompile_limit = 1000
            wrapped = torch.compile(wrapped, backend="aot_eager", dynamic=False)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        slow = given.ms if self.fault in ("loader", "far") and self.faulty else 0.0
        batch = 8
        data = torch.utils.data.DataLoader(
            Samples(shape, slow / batch, self.steps, self.fault == "far"), batch
        )
        for step, (inputs, labels) in enumerate(data):
            if step == self.steps:
                break
            if given.model == "mlp" and given.micro == 1:
                inputs, labels = inputs.repeat(12, 1), labels.repeat(12)
            if self.fault == "compile":
                inputs, labels = inputs[: 96 - step], labels[: 96 - step]
            if self.faulty and (self.fault in EACH_STEP or (self.fault == "outlier" and step == OUTLIER)):
                self.planted(given.ms)
            optimizer.zero_grad()
            for micro in range(given.micro):
                quiet = nullcontext()
                if self.fault != "sync-all" and micro + 1 < given.micro and wrapped is not self.model:
                    quiet = wrapped.no_sync()  # pyright: ignore
                with quiet, torch.autocast("cpu", torch.bfloat16, enabled=given.bf16):
                    loss = nn.functional.cross_entropy(wrapped(inputs), labels) / given.micro
                    loss.backward()
            if self.fault in ("barriers", "reads"):
                self.meet()
            optimizer.step()
            lostflops.log(loss=loss)
            self.ended()

    def ended(self) -> None:
        self.ends.append(time.perf_counter())
        self.busy.append(time.process_time() + self.slept)

    def stages(self, given: argparse.Namespace) -> None:
        """Two stages of a pipeline, 1F1B, of six layers: three each, or with the fault two and four."""
        torch.distributed.init_process_group("gloo")
        torch.manual_seed(0)
        last = self.rank + 1 == torch.distributed.get_world_size()
        layers = [nn.Sequential(nn.Linear(64, 64), Steady(given.layer_ms)) for _ in range(6)]
        first = 2 if self.fault == "stages" else 3  # of the last stage
        module = nn.Sequential(*(layers[first:] if last else layers[:first]))
        stage = PipelineStage(module, self.rank, torch.distributed.get_world_size(), torch.device("cpu"))
        schedule = Schedule1F1B(stage, given.micro, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
        for _ in range(self.steps):
            x = torch.ones(2 * given.micro, 64)
            losses: list[torch.Tensor] = []
            schedule.step(*(() if self.rank else (x,)), **({"target": x, "losses": losses} if last else {}))
            optimizer.step()
            optimizer.zero_grad()
            if losses:
                lostflops.log(loss=torch.stack(losses).mean())
            self.ended()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--model", default="mlp", choices=("mlp", "cnn", "deep", "steady", "stages"))
    parser.add_argument("--layer-ms", type=float, default=5.0, help="forward, of a layer of `steady`")
    parser.add_argument("--width", type=int, default=768, help="of a layer of `steady`")
    parser.add_argument("--micro", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--ms", type=float, default=60.0)
    parser.add_argument("--rank", type=int, help="the only rank with the fault")
    parser.add_argument("--bucket-mb", type=float, help="of DDP; its own default where not given")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--bf16", action="store_true", help="products of the forward pass in bf16")
    parser.add_argument("--function", default="teach")
    parser.add_argument("--times", required=True, help="where each rank writes what its steps took")
    given = parser.parse_args()
    torch.set_num_threads(THREADS if given.fault == "threads" else given.threads)
    job = Job(given)
    (job.stages if given.model == "stages" else job.train)(given)
    took = {"ends": job.ends, "lost": job.lost, "busy": job.busy}
    Path(f"{given.times}.{job.rank}").write_text(json.dumps(took))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
