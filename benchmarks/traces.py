"""The traces that are measured: recorded ones, and one of 1 GB made from a recorded one."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tempfile
from pathlib import Path

from replicate import replicate

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "traces" / "kineto"
WORTH_TIMING = 1_000_000  # bytes, compressed
REPLICATED = "tracelens/inference__xdit_flux.1_aiter_sage__capture_traces__capture_trace_rank_0.json.gz"
COPIES = 17
RELABELLED = "hta/df_index_resolver__df_index_resolver.json.gz"
KEPT = Path(os.environ.get("LOSTFLOPS_BENCH") or Path(tempfile.gettempdir(), "lostflops-bench"))


def recorded() -> list[Path]:
    """The recorded traces that are large enough to time, smallest first."""
    return sorted(
        (f for f in RECORDED.rglob("*.json.gz") if f.stat().st_size >= WORTH_TIMING),
        key=lambda f: f.stat().st_size,
    )


def large() -> Path:
    """A trace of 1 GB, made once and kept in KEPT."""
    plain = KEPT / f"{COPIES}-copies.json"
    if not plain.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        replicate(RECORDED / REPLICATED, COPIES, plain)
    return plain


def packed(plain: Path) -> Path:
    """The same as `.json.gz`, kept beside it."""
    compressed = plain.with_name(f"{plain.name}.gz")
    if not compressed.exists():
        part = compressed.with_suffix(".part")
        with plain.open("rb") as source, gzip.open(part, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        part.rename(compressed)
    return compressed


def name(trace: Path) -> str:
    """Short, and without where this machine keeps it."""
    folder = f"{trace.parent.name}/" if trace.is_relative_to(RECORDED) else ""
    stem = trace.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    for sep in ("__capture_traces__", "inference__"):
        stem = stem.replace(sep, " ")
    return f"{folder}{stem.strip()}"


def eight_ranks() -> dict[int, Path]:
    """The files of the eight ranks of one recorded job, by rank."""
    return {rank: next(RECORDED.glob(f"param_dlrm8/worker{rank}_*.json.gz")) for rank in range(8)}


def eight_large_ranks() -> dict[int, Path]:
    """One recorded rank, relabelled as eight: for size, not for what ranks do to each other. Kept in KEPT."""
    folder = KEPT / "relabelled"
    files = {rank: folder / f"rank{rank}.json.gz" for rank in range(8)}
    if not all(file.is_file() for file in files.values()):
        folder.mkdir(parents=True, exist_ok=True)
        text = gzip.decompress((RECORDED / RELABELLED).read_bytes())
        for rank, file in files.items():
            own = re.sub(rb'"rank": \d+, "world_size": \d+', b'"rank": %d, "world_size": 8' % rank, text)
            file.write_bytes(gzip.compress(own, 6))
    return files


def asked_of() -> dict[str, dict[int, Path]]:
    """The jobs of which each recipe is asked: the largest recorded traces, two of 8 ranks, and the 1 GB."""
    largest = [{0: file} for file in recorded()[-4:]]
    return {name(files[0]): files for files in largest} | {
        "DLRM, 8 ranks": eight_ranks(),
        "DDP × 8": eight_large_ranks(),
        name(large()): {0: large()},
    }
