"""Measure the remedies of lostflops.optimize on the GPU of this machine: one command, one table.

python benchmarks/gpu/run.py                      everything, in under ten minutes; run again to resume
python benchmarks/gpu/run.py --only offload       one section anew
python benchmarks/gpu/run.py --threads            on a CPU that plays the GPU: shows that it runs, no more

Each section is a process of its own and leaves a record, RESULTS/SECTION.json: what was run, on what, with
every single time. A record of the same GPU, versions and size is kept, so that after an interruption only
what is missing runs, and a section that fails, is killed or runs out of time loses only what it had not yet
measured. RESULTS/README.md is the table of all records; nothing in it comes from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import Any

HERE = Path(__file__).parent
# Seconds that each may measure; starting, warming up and the slowest case come on top. What is worth most
# comes first, for a machine that is lent by the minute.
SECTIONS = {
    "link": 20,
    "offload": 120,
    "pack_cost": 10,
    "predictions": 60,
    "frozen": 40,
    "streaming": 30,
    "kv_cache": 20,
    "optimizer": 30,
    "kv_offload": 20,
    "precision": 40,
    "sanitizer": 20,
    "managed": 40,
    "loader": 30,
    "experts": 20,
    "files": 20,
    "frozen_fsdp": 20,
}
MARGIN = 150  # seconds after which a section that does not end is ended
LEAST = 45  # seconds that must be left for a section to begin


def main() -> int:
    given = arguments()
    if given.section:
        return measure(given)
    machine = about(given)
    if machine["gpu"] is None and not given.threads:
        print(
            "No GPU here. `--threads` lets the CPU play one, to see that the sections run.", file=sys.stderr
        )
        return 2
    given.results.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    wanted: list[str] = []
    for name in SECTIONS:
        record = given.results / f"{name}.json"
        if given.only and name not in given.only:
            continue
        if not given.only and kept(record, machine):
            print(f"{name}: kept, measured {json.loads(record.read_text())['measured']}", file=sys.stderr)
            continue
        wanted.append(name)
    # What was never tried goes before what failed, or else that would keep the others from their turn.
    wanted.sort(key=lambda name: (given.results / f"{name}.json").exists())
    with ExitStack() as undo:
        ready = [undo.enter_context(Started(given, name)) for name in wanted[:1]]
        for name, after in zip(wanted, [*wanted[1:], None], strict=True):
            started = ready.pop()
            left = 60 * given.minutes - (time.monotonic() - began)
            if left < LEAST:
                print(f"{name}: no time left; run the command again", file=sys.stderr)
                break
            if after is not None:  # imports while this one measures: on a GPU that costs it nothing
                ready.append(undo.enter_context(Started(given, after)))
            seconds = min(SECTIONS[name] * given.share, left)
            print(f"{name}: up to {seconds:.0f} s of measuring ...", file=sys.stderr, flush=True)
            run(started, seconds, given.results / f"{name}.json", machine, min(seconds + MARGIN, left))
    import page

    text = page.page(given.results)
    (given.results / "README.md").write_text(text)
    print(text)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument(
        "--size", choices=("tiny", "1b", "3b", "8b"), help="of the model (default 3b; tiny with --threads)"
    )
    parser.add_argument("--tokens", type=int, nargs="+", help="of a sequence (default 4096 16384 32768)")
    parser.add_argument("--share", type=float, default=1.0, help="of the time that sections take (default 1)")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="that one call takes at most (default 9.5)"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    parser.add_argument("--threads", action="store_true", help="the CPU plays the GPU")
    parser.add_argument(
        "--section",
        choices=SECTIONS,
        help="measure this one here, for the seconds that a line of input says, and print its record's rows",
    )
    parser.add_argument(
        "--within",
        action="store_true",
        help="never more unified memory than the GPU has free: for a machine that others use, too",
    )
    given = parser.parse_args()
    given.size = given.size or ("tiny" if given.threads else "3b")
    given.tokens = given.tokens or ([48, 96] if given.threads else [4096, 16_384, 32_768])
    return given


def about(given: Namespace) -> dict[str, Any]:
    """What a record's figures depend on."""
    import torch

    gpu = None
    if torch.cuda.is_available() and not given.threads:
        gpu = torch.cuda.get_device_name(0)
    found: dict[str, Any] = {"gpu": gpu, "size": given.size, "tokens": given.tokens}
    found["code"] = code()
    found["machine"] = platform.machine()
    found["cores"] = len(os.sched_getaffinity(0))
    for name in ("lostflops", "torch", "transformers", "peft", "torchao", "trl"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def code() -> str:
    """Which remedies and which sections: a record of others is no record of these."""
    import lostflops

    files = [*HERE.glob("*.py"), *(Path(lostflops.__file__).parent / "optimize").rglob("*")]
    content = b"".join(file.read_bytes() for file in sorted(files) if file.suffix in (".py", ".c"))
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def kept(record: Path, machine: dict[str, Any]) -> bool:
    try:
        found = json.loads(record.read_text())
        return "failed" not in found and found["about"] == machine
    except (OSError, ValueError, KeyError):
        return False


class Started:
    """A section's process: it imports what it needs, and begins to measure when it is told for how long."""

    def __init__(self, given: Namespace, name: str) -> None:
        self.name = name
        with ExitStack() as files:
            self.out = files.enter_context(TemporaryFile("w+"))
            self.said = files.enter_context(TemporaryFile("w+"))
            self.files = files.pop_all()
        command = [sys.executable, str(Path(__file__)), "--section", name, "--size", given.size]
        command += ["--tokens", *map(str, given.tokens), "--results", str(given.results)]
        command += [option for option in ("--threads", "--within") if getattr(given, option[2:])]
        self.process = subprocess.Popen(
            command, stdin=PIPE, stdout=self.out, stderr=self.said, text=True, start_new_session=True
        )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # and what it has started
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with suppress(BrokenPipeError):  # what it was told and never read
            self.process.stdin and self.process.stdin.close()
        self.files.close()

    def measured(self, seconds: float, limit: float) -> tuple[list[Any] | None, str | None]:
        """Its last rows, and why it failed; ended after `limit` seconds."""
        failed: str | None = None
        with self:
            try:
                with suppress(BrokenPipeError):
                    self.process.communicate(f"{seconds}\n", limit)
                code = self.process.returncode
            except subprocess.TimeoutExpired:
                code, failed = None, f"not done after {limit:.0f} s"
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            self.out.seek(0)
            self.said.seek(0)
            rows = last_rows(self.out.read())
            if code:
                failed = self.said.read()[-2000:].strip() or f"ended with {code}, without a word"
        if rows is None and failed is None:
            failed = "ended without a result"
        return rows, failed


def run(started: Started, seconds: float, record: Path, machine: dict[str, Any], limit: float) -> None:
    """What the section printed becomes its record, also when it failed, was killed or ended."""
    began = time.monotonic()
    rows, failed = started.measured(seconds, limit)
    found: dict[str, Any] = {"section": started.name, "about": machine}
    found["measured"] = f"{datetime.now(UTC):%Y-%m-%d}"
    found["took_seconds"] = round(time.monotonic() - began, 1)
    found |= {"failed": failed} if failed else {}
    found |= {} if rows is None else {"rows": rows}
    beside = record.with_suffix(".tmp")
    beside.write_text(json.dumps(found, indent=1) + "\n")
    beside.replace(record)
    if failed:
        print(f"{started.name}: failed: {failed.splitlines()[-1]}", file=sys.stderr)


def last_rows(text: str) -> list[Any] | None:
    """A section prints all its rows each time that there are more; the last line may be cut off."""
    for line in reversed(text.splitlines()):
        if line.startswith("["):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def measure(given: Namespace) -> int:
    from setting import Setting

    section = import_module(f"section_{given.section}")
    import_what_sections_use()
    seconds = float(sys.stdin.readline() or 30)
    if given.threads:
        import torch

        torch.set_num_threads(1)  # the others copy
    setting = Setting(given.size, tuple(given.tokens), seconds, given.threads, given.within)
    print(json.dumps(list(section.rows(setting))))
    return 0


def import_what_sections_use() -> None:
    """While another section has the GPU, which nothing here touches."""
    from transformers import LlamaForCausalLM

    from lostflops import optimize

    _ = (LlamaForCausalLM, optimize.offload)


if __name__ == "__main__":
    sys.exit(main())
