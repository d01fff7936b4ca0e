# pyright: basic
"""The training job of the exercises: one loop, in which every fault is an option.

python -m lostflops.lab.exercises.scripts.train --truth truth.jsonl --workers 0 --input-ms 10

`--truth` is a file to which rank 0 appends what is true of the run: parameters, options, times of the input.
"""

import argparse
import json
import os
import sys
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import record_function
from torch.utils.data import DataLoader, Dataset

from lostflops.lab.exercises.scripts.model import MODELS, Transformer, add_lora

PRECISIONS = ("no", "bf16", "bf16-weights", "fp16", "fp8")


class MadeUpSamples(Dataset[Tensor]):
    """Made-up tokens. Making a sample takes `ms`, as tokenising or fetching one does; `named` marks it."""

    def __init__(self, vocabulary: int, length: int, ms: float, named: bool) -> None:
        self.vocabulary, self.length, self.ms, self.named = vocabulary, length, ms, named

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        with record_function("tokenise") if self.named else nullcontext():
            time.sleep(self.ms / 1000)
            seed = torch.Generator().manual_seed(index)
            return torch.randint(self.vocabulary, (self.length + 1,), generator=seed)


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="llama-tiny", choices=MODELS)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--sync-every-microbatch", action="store_true")
    parser.add_argument("--dataloader-workers", type=int, default=0)
    parser.add_argument("--input-ms", type=float, default=0.0, help="time to make one sample")
    parser.add_argument("--layer-ms", type=float, default=0.0, help="time of a layer forward; twice backward")
    parser.add_argument("--mixed-precision", default="no", choices=PRECISIONS)
    parser.add_argument("--loss-scale", type=float, default=65536.0, help="where fp16's search begins")
    parser.add_argument("--parallel", default="ddp", choices=("ddp", "fsdp2", "deepspeed", "tensor"))
    parser.add_argument("--own-inputs", action="store_true", help="each projection reduces alone (tensor)")
    parser.add_argument("--offload", action="store_true", help="saved tensors wait in host memory")
    parser.add_argument("--managed", action="store_true", help="on a GPU: all of it in unified memory")
    parser.add_argument("--bucket-mb", type=float, default=1.0)
    parser.add_argument("--no-overlap", action="store_true")
    parser.add_argument("--stage2", action="store_true", help="keep gathered weights until after backward")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--no-ranges", action="store_true", help="mark nothing")
    parser.add_argument("--truth", type=Path)
    return parser.parse_args(words)


def waiting_hook(group: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # pyright: ignore
    """Reduces a bucket and waits for it at once, so that nothing runs beside it."""
    dist.all_reduce(bucket.buffer())
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer().div_(dist.get_world_size()))
    return done


def wrapped(model: nn.Module, given: argparse.Namespace) -> nn.Module:
    """The model as the ranks share it; alone as it is."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    if given.parallel == "tensor":
        from lostflops.lab.exercises.scripts.tensor import split

        return split(model, given.device, not given.own_inputs)
    if given.parallel == "deepspeed":
        return model  # its engine needs the optimizer
    if given.parallel == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(given.device, (dist.get_world_size(),))
        for block in model.blocks:  # pyright: ignore
            fully_shard(block, mesh=mesh, reshard_after_forward=not given.stage2)
        return fully_shard(model, mesh=mesh, reshard_after_forward=False)  # pyright: ignore
    shared = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=given.bucket_mb)
    if given.no_overlap:
        shared.register_comm_hook(None, waiting_hook)
    return shared


def remedy(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> Any:
    """What of `lostflops.optimize` is switched on, if anything."""
    if not given.offload and given.mixed_precision not in ("fp16", "fp8"):
        return None
    from lostflops import optimize

    if given.offload:
        device = optimize.ThreadedDevice() if given.device == "cpu" else None  # which plays a GPU
        return optimize.offload(model, plan="everything", threshold=0, device=device)
    if given.mixed_precision == "fp16":
        return optimize.to_fp16(model, optimizer, scale=given.loss_scale)
    return optimize.to_fp8(model, recipe="tensorwise", small=True)


class TrainingJob:
    """One rank's training."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        shape = MODELS[given.model]
        torch.manual_seed(0)
        self.managed: Any = None
        self.memory = ExitStack()  # what is allocated until it is closed lies in unified memory, if asked for
        if given.managed and given.device == "cuda":
            from lostflops import optimize

            self.managed = self.memory.enter_context(optimize.managed(prefer="gpu"))
        model = Transformer(shape, given.layer_ms).to(given.device)
        if given.lora:
            add_lora(model)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.counts = (sum(p.numel() for p in model.parameters()), sum(p.numel() for p in self.trained))
        if given.mixed_precision in ("bf16-weights", "fp8"):
            model.bfloat16()
        self.model = wrapped(model, given)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-5)
        self.engine: Any = None
        if given.parallel == "deepspeed":
            from lostflops.lab.exercises.scripts.zero import engine

            self.model = self.engine = engine(model, self.optimizer, given)
        samples = MadeUpSamples(shape.vocabulary, given.seq, given.input_ms, not given.no_ranges)
        workers = given.dataloader_workers
        self.batches = iter(
            DataLoader(samples, given.micro_batch_size, num_workers=workers, persistent_workers=workers > 0)
        )
        self.input_s: list[float] = []
        self.step_s: list[float] = []
        self.losses: list[Tensor] = []
        self.remedy = remedy(model, self.optimizer, given)

    def range(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.given.no_ranges else record_function(name)

    def train(self) -> None:
        with self.memory, self.remedy if self.given.offload else nullcontext():
            self.steps()

    def steps(self) -> None:
        for _ in range(self.given.steps):
            began, waited = time.perf_counter(), 0.0
            with self.range("zero_grad"):
                self.optimizer.zero_grad()
            for micro in range(self.given.gradient_accumulation_steps):
                waited += self.microbatch(last=micro + 1 == self.given.gradient_accumulation_steps)
            # `lostflops record` marks steps and the optimizer, at whose end a step ends.
            scaled = self.remedy if self.given.mixed_precision == "fp16" else None
            (self.engine or scaled or self.optimizer).step()
            self.input_s.append(waited)
            self.step_s.append(time.perf_counter() - began)

    def microbatch(self, last: bool) -> float:
        """Forward and backward of one; the seconds that its input took."""
        began = time.perf_counter()
        with self.range("input"):
            tokens = next(self.batches).to(self.given.device)
        waited = time.perf_counter() - began
        half = self.given.mixed_precision == "bf16"  # fp16 and fp8 are switched on once, by their remedy
        quiet = nullcontext()
        if not (last or self.given.sync_every_microbatch) and isinstance(
            self.model, nn.parallel.DistributedDataParallel
        ):
            quiet = self.model.no_sync()
        with quiet:
            with self.range("forward"), torch.autocast(self.given.device, torch.bfloat16, enabled=half):
                logits = self.model(tokens[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            self.losses.append(loss.detach())
            # `lostflops record` marks the backward.
            if self.engine is not None:
                self.engine.backward(loss)
            else:
                (self.remedy.backward(loss) if self.given.mixed_precision == "fp16" else loss.backward())
        return waited

    def states(self) -> dict[str, int]:
        """Bytes that live from step to step: of weights, their gradients, and what the optimizer keeps."""
        kept = [one for state in self.optimizer.state.values() for one in state.values()]
        weights = list(self.model.parameters())
        return {
            "weights": sum(p.nbytes for p in weights),
            "gradients": sum(p.grad.nbytes for p in weights if p.grad is not None),
            "optimizer": sum(t.nbytes for t in kept if t.numel() > 1),  # without its count of steps
        }

    def truth(self) -> dict[str, object]:
        """What is true of this run: sizes, options, and medians of the steps after the first two."""
        middle = sorted(range(2, len(self.step_s)), key=lambda step: self.step_s[step])
        median = middle[len(middle) // 2]
        return {
            "parameters": self.counts[0],
            "trained": self.counts[1],
            "options": {name: str(value) for name, value in vars(self.given).items() if name != "truth"},
            "step_ms": 1000 * self.step_s[median],
            "inputs_ms": [round(1000 * waited, 3) for waited in self.input_s],
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "world": dist.get_world_size() if dist.is_initialized() else 1,
            "losses": [float(loss) for loss in self.losses],
            "states": self.states() if self.given.parallel == "ddp" else None,
            "managed": self.managed.report().to_json() if self.managed is not None else None,
            "remedy": self.remedy.report().to_json() if self.remedy is not None else None,
        }


def main() -> None:
    given = options()
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        if given.device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if given.device == "cuda" else "gloo")
    job = TrainingJob(given)
    job.train()
    if given.truth is not None and int(os.environ.get("RANK", "0")) == 0:
        with given.truth.open("a") as file:
            file.write(json.dumps(job.truth()) + "\n")
    del job
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
