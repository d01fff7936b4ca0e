"""The traces that are measured: recorded ones, and one of 1 GB made from a recorded one."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from pathlib import Path

from replicate import replicate

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "traces" / "kineto"
WORTH_TIMING = 1_000_000  # bytes, compressed
REPLICATED = "tracelens/inference__xdit_flux.1_aiter_sage__capture_traces__capture_trace_rank_0.json.gz"
COPIES = 17
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
