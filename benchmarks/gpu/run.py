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
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
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
    for name in wanted:
        left = 60 * given.minutes - (time.monotonic() - began)
        seconds = min(SECTIONS[name] * given.share, left)
        if left < LEAST:
            print(f"{name}: no time left; run the command again", file=sys.stderr)
            continue
        print(f"{name}: up to {seconds:.0f} s of measuring ...", file=sys.stderr, flush=True)
        run(given, name, seconds, given.results / f"{name}.json", machine, min(seconds + MARGIN, left))
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
        "--section", choices=SECTIONS, help="measure this one here and print its record's rows"
    )
    parser.add_argument("--seconds", type=float, default=30, help="that --section may measure")
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


def run(
    given: Namespace, name: str, seconds: float, record: Path, machine: dict[str, Any], limit: float
) -> None:
    """The section in a process of its own, ended after `limit` seconds; what it printed becomes its record,
    also when it failed, was killed or ended."""
    command = [sys.executable, str(Path(__file__)), "--section", name, "--seconds", str(seconds)]
    command += ["--size", given.size, "--tokens", *map(str, given.tokens), "--results", str(given.results)]
    command += ["--threads"] if given.threads else []
    began = time.monotonic()
    with TemporaryFile("w+") as out, TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=out, stderr=said, text=True, start_new_session=True)
        failed = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code, failed = None, f"not done after {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):  # and what it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        said.seek(0)
        rows = last_rows(out.read())
        if code:
            failed = said.read()[-2000:].strip() or f"ended with {code}, without a word"
    if rows is None and failed is None:
        failed = "ended without a result"
    found: dict[str, Any] = {"section": name, "about": machine, "measured": f"{datetime.now(UTC):%Y-%m-%d}"}
    found["took_seconds"] = round(time.monotonic() - began, 1)
    found |= {"failed": failed} if failed else {}
    found |= {} if rows is None else {"rows": rows}
    beside = record.with_suffix(".tmp")
    beside.write_text(json.dumps(found, indent=1) + "\n")
    beside.replace(record)
    if failed:
        print(f"{name}: failed: {failed.splitlines()[-1]}", file=sys.stderr)


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

    if given.threads:
        import torch

        torch.set_num_threads(1)  # the others copy
    setting = Setting(given.size, tuple(given.tokens), given.seconds, given.threads)
    rows = import_module(f"section_{given.section}").rows(setting)
    print(json.dumps(list(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
