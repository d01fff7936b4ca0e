"""Write the traces of a training job that never ran, and the truth about it.

The job's hosts, streams, collectives and transfers are simulated with durations from the cards of `plan`.
A fault can be planted. truth.json beside the traces holds the times of all steps, what was planted, and the
step time without it. The traces are marked as simulated, and `lostflops why` says so.
"""

from __future__ import annotations

import os
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lostflops.cli.output.waiting import waiting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--ranks", metavar="N", type=int, default=8, help="ranks of the job (default 8)")
    parser.add_argument(
        "--strategy",
        metavar="S",
        default="ddp",
        help="such as ddp, fsdp2, zero3, tp2-pp4-dp32, pp4-interleaved-v2, ep8 (default ddp)",
    )
    parser.add_argument("--fault", metavar="NAME", help="what goes wrong; 'list' lists the faults")
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="chooses all that varies (default 0)"
    )
    parser.add_argument("--steps", metavar="N", type=int, default=4, help="recorded steps (default 4)")
    parser.add_argument(
        "--layers", metavar="N", type=int, default=0, help="layers (default 2 per chunk of a stage)"
    )
    parser.add_argument("--model", metavar="NAME", default="llama-3-8b", help="a model that `plan` knows")
    parser.add_argument(
        "--gpu", metavar="NAME", default="h100", help="a GPU that `plan` knows (default h100)"
    )
    parser.add_argument(
        "--tokens", metavar="N", type=int, default=8192, help="of a microbatch (default 8192)"
    )
    parser.add_argument(
        "--format", choices=("kineto", "nsys"), default="kineto", help="of the traces (default kineto)"
    )
    parser.add_argument("--plain", action="store_true", help="do not compress the traces")
    parser.add_argument("--cuda-sync", action="store_true", help="record which event a stream waits for, too")


def run(given: Namespace) -> None:
    from lostflops.errors import BadOption, OutputExists, suggestion
    from lostflops.finding import milliseconds
    from lostflops.lab.simulate.faults import faults, with_fault
    from lostflops.lab.simulate.job import SimulatedJob
    from lostflops.lab.simulate.strategy import strategy
    from lostflops.lab.simulate.writing import simulate

    if given.fault == "list":
        for name, fault in faults().items():
            print(f"{name:20}  {(fault.__doc__ or '').partition(chr(10))[0]}")
        return
    if given.fault is not None and given.fault not in faults():
        raise BadOption(
            f"There is no fault called '{given.fault}'.{suggestion(given.fault, faults())}",
            f"there are {', '.join(faults())}.",
        )
    for flag, least in (("ranks", 1), ("steps", 1), ("layers", 0), ("tokens", 256)):
        if getattr(given, flag) < least:
            raise BadOption(f"`--{flag}` has to be {least} or more.")
    if given.output.exists() and (not given.output.is_dir() or any(given.output.iterdir())):
        raise OutputExists(given.output)
    job = SimulatedJob(
        strategy(given.strategy, given.ranks),
        seed=given.seed,
        steps=given.steps,
        layers=given.layers,
        model=given.model,
        card=given.gpu,
        tokens=given.tokens,
        syncs=given.cuda_sync,
    )
    if given.fault and not faults()[given.fault].fits(job.strategy):
        raise BadOption(f"'{given.fault}' cannot happen with --strategy {given.strategy}.")
    with waiting() as tell:
        fault = with_fault(job, given.fault) if given.fault else None
        with _whole(given.output) as place:
            truth = simulate(
                job, place, fault=fault, format=given.format, packed=not given.plain, progress=tell
            )
    cost = f", {milliseconds(truth['step_without_fault'])} without the fault" if fault else ""
    print(f"simulated {job.ranks} ranks of {job.strategy.name} -> {given.output}")
    print(f"step {milliseconds(truth['step'])}{cost}")
    print(f"{truth['events']:,} events; the truth is in {given.output / 'truth.json'}")


@contextmanager
def _whole(output: Path) -> Generator[Path]:
    """A hidden folder to fill; what is in it becomes `output` when the block ends without an error."""
    from lostflops.errors import CannotWrite

    was_there = output.exists()
    # Beside it, or inside of what is there: another file system may begin between the two.
    place = (output if was_there else output.parent) / f".{output.name[:100]}.{os.getpid()}.tmp"
    try:
        place.mkdir(parents=True)
        yield place
        if not was_there:
            place.replace(output)
            return
        for made in place.iterdir():
            made.replace(output / made.name)
    except OSError as error:
        raise CannotWrite(output, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
