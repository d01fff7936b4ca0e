"""Hashes of what lostflops answers: ledger, findings and every recipe's table, one line each.

    python tests/versions/answers.py [--ties-reversed] [RUN ...]

Without runs: the bundled examples, and the traces that lie below `LOSTFLOPS_TRACES`. Two environments agree
where the lines are the same. A number that is not whole counts to twelve digits: the order of a sum shows in
the sixteenth.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Every source that has a reader, several ranks, and no trace above a few megabytes.
TRACES = (
    "kineto/param_dlrm8",
    "kineto/deepseek",
    "kineto/gen_torch213_cpu/tp_pp_rank*",
    "kineto/hta/trace_filter__sampled_rank-*",
    "kineto/hta/amd_trace*",
    "kineto/hta/with_gpu_user_annotation*",
    "kineto/hta/nccl_parser_config*",
    "kineto/kineto_tb/resnet50_num_workers_0__worker0.1623143089861*",
    "kineto/tracelens/h100__Falconsai*",
    "kineto/tracelens/mi300__resnet_act_checkpoint*",
    "nsys/*.sqlite.zst",
)


def main(arguments: list[str]) -> None:
    reversed_ties = "--ties-reversed" in arguments
    named = [a for a in arguments if not a.startswith("--")]
    if reversed_ties:
        import untold_order

        untold_order.reverse()
    with tempfile.TemporaryDirectory() as folder, _runs(named, Path(folder)) as runs:
        os.environ["LOSTFLOPS_CACHE"] = folder  # nothing that another environment answered
        for name, paths in runs:
            for what, digest in answers(paths):
                print(f"{digest}  {name}  {what}", flush=True)


@contextmanager
def _runs(named: list[str], folder: Path) -> Iterator[Iterator[tuple[str, list[Path]]]]:
    if named:
        yield ((path, [Path(path)]) for path in named)
        return
    examples = [(path.name, [path]) for path in sorted((ROOT / "examples" / "runs").iterdir())]
    traces = Path(os.environ.get("LOSTFLOPS_TRACES", os.devnull))
    found = [(pattern, sorted(traces.glob(pattern))) for pattern in TRACES if traces.is_dir()]
    yield iter(examples + [run for pattern, files in found for run in _each(pattern, files, folder)])


def _each(pattern: str, files: list[Path], folder: Path) -> Iterator[tuple[str, list[Path]]]:
    if not pattern.endswith(".zst"):
        if files:
            yield pattern, files
        return
    try:
        import zstandard
    except ImportError:
        return
    for file in files:
        target = folder / file.stem
        with file.open("rb") as packed, target.open("wb") as unpacked:
            zstandard.ZstdDecompressor().copy_stream(packed, unpacked)
        yield file.name, [target]


def answers(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """What is asked, and the hash of the answer: a refusal is an answer too."""
    import lostflops
    from lostflops import recipes
    from lostflops.session import Session, Skipped

    try:
        trace = lostflops.open(paths, allow_missing_ranks=True)
        page = lostflops.why(trace)
    except lostflops.LostflopsError as error:
        yield "refused", _hash(str(error).replace(str(paths[0].parent), ""))
        return
    yield "ledger", _hash(_rows(page.ledger))
    yield "findings", _hash(page.findings)
    yield "notes and facts", _hash((page.verdict, page.notes, page.figures))
    session = Session(trace)
    with trace.reading():
        for name in sorted(recipes.recipes()):
            try:
                answer = session.run(name)
            except lostflops.LostflopsError as error:
                answer = Skipped(name, error.message)
            yield name, _hash(answer.reason if isinstance(answer, Skipped) else _rows(answer.table))


def _rows(table: Any) -> list[Any]:
    return [table.columns, *table.rows()]


def _hash(value: Any) -> str:
    return hashlib.blake2b(repr(_rounded(value)).encode(), digest_size=10).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return [type(value).__name__, *(_rounded(getattr(value, f)) for f in value.__dataclass_fields__)]
    return value


if __name__ == "__main__":
    main(sys.argv[1:])
