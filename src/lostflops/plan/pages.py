"""Plans as text for a terminal and as plain data for JSON. Every figure in them is predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lostflops.units import milliseconds

from .hardware import Gpu
from .serve.inference import Served, ServingOption
from .shape import Shape
from .train import apply
from .train.job import Moment, Prediction, Training
from .train.ranking import Ranking, Way
from .train.static_memory import MemoryPart

BAR = 24
SHORT = 1_000_000  # ns: no layer's forward was faster where Megatron started its kernels one by one (vTrain)
LONG = 0.25  # attention's share above which one sustained rate was seen to be too fast


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> Iterator[str]:
    """Lines of a table whose columns are as wide as they need; those numbered in `right` end flush."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _gb(size: int) -> str:
    return f"{size / 1e9:,.2f}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.1f}" if ns < 10**10 else f"{ns / 1e6:,.0f}"


def _bar(part: int, whole: int) -> str:
    return "█" * round(BAR * part / whole) if whole else ""


def _memory(parts: Sequence[MemoryPart], capacity: int) -> Iterator[str]:
    total = sum(part.bytes for part in parts)
    rows = [[part.name, _gb(part.bytes), _bar(part.bytes, total), part.why] for part in parts if part.bytes]
    rows.append(["together", _gb(total), "", f"the GPU has {_gb(capacity)}"])
    yield from grid(["memory per GPU, predicted", "GB", "", ""], rows, {1})


def training(ranking: Ranking) -> list[str]:
    """The job as asked, by component, its step, and the ways to make it fit."""
    return list(_training(ranking))


def _training(ranking: Ranking) -> Iterator[str]:
    now = ranking.asked.prediction
    t = now.training
    yield (
        f"{t.shape.name}, {t.shape.parameters():,} parameters, on {t.layout.gpus} {t.gpu.name}; "
        f"{t.microbatch} x {t.sequence:,} tokens, {t.microbatches} per step"
    )
    yield ranking.verdict
    yield from _too_long(t.shape, t.sequence)
    yield ""
    yield from _memory(now.peak.parts, t.gpu.memory)
    yield f"  peak at '{now.peak.name}'{_on(now.peak, now)}; {_others(now)}"
    if now.host_bytes:
        yield f"  host memory per GPU: {_gb(now.host_bytes)} of {_gb(t.gpu.host_memory)} GB"
    yield ""
    rows = [[s.name, _ms(s.ns), _bar(s.ns, now.step_ns), s.bound] for s in now.spans]
    rows.append(["step", _ms(now.step_ns), "", f"mostly {now.bound}"])
    yield from grid(["step, predicted", "ms", "", "bound by"], rows, {1})
    yield f"  {now.tokens_per_second_and_gpu:,.0f} tokens/s and GPU, {now.tokens:,} tokens per step"
    each = now.spans[0].ns * t.layout.pipeline // (t.microbatches * t.shape.layers)
    if each < SHORT:
        yield (
            f"  the forward of a layer takes {milliseconds(each)}: a host that starts its kernels one by one "
            f"may take {milliseconds(SHORT)}, which is not counted; larger microbatches or CUDA graphs help"
        )
    if now.attention_share > LONG and not t.gpu.attention:
        yield (
            f"  attention is {now.attention_share:.0%} of the operations and this card has one rate for all: "
            "expect more time; published runs of long sequences took a third more and over"
        )
    yield ""
    yield from _ways("each remedy alone, predicted", [ranking.asked, *ranking.alone])
    if ranking.ways and not ranking.asked.prediction.fits:
        yield ""
        yield from _ways("what fits, fastest first, predicted (1 % is a tie)", ranking.ways)
    yield ""
    if ranking.layouts:
        title = "the fastest layouts that fit, predicted"
        yield from _ways(title, [ranking.asked, *ranking.layouts])
        yield ""
    yield f"To apply '{ranking.headline.name}':"
    yield from apply.lines(ranking.headline.prediction.training)
    yield ""
    yield from _applied([way.apply for way in (*ranking.alone, *ranking.ways)])
    yield f"Layers run {'fused' if t.kernels == 'fused' else 'eager'} kernels and {_attention(t)}."
    if t.executed.every_expert:
        yield f"transformers sends each token through all {t.shape.experts} experts: so it is counted."
    yield _card(t.gpu)
    rates = f"{t.link.out / 1e9:.0f} GB/s out, {t.link.into / 1e9:.0f} in"
    yield f"Link card {t.link.name}: {rates}; {t.link.status}."


def _attention(training: Training) -> str:
    return "attention that keeps its scores" if training.executed.scores else "flash attention"


def _too_long(shape: Shape, tokens: int) -> Iterator[str]:
    if 0 < shape.longest < tokens:
        need = "need more position embeddings" if shape.positions else "need rotary scaling or more training"
        if shape.buckets:  # distances beyond the last share one
            need = "run as they are, because its positions are relative, but may need more training"
        yield f"{shape.name} was made for {shape.longest:,} tokens: {tokens:,} {need}."


def _card(gpu: Gpu) -> str:
    rate = f"{gpu.sustained / 1e12:.0f} TFLOP/s sustained"
    if gpu.matmul and gpu.attention:
        rate = f"{gpu.matmul / 1e12:.0f} TFLOP/s in matrix products, {gpu.attention / 1e12:.0f} in attention"
    return f"GPU card {gpu.name}: {gpu.provenance}; {rate}."


def _applied(functions: Sequence[Sequence[str]]) -> Iterator[str]:
    """Where the remedies on the page are: one line."""
    found = list(dict.fromkeys(name for names in functions for name in names))
    if found:
        first, *rest = found
        others = "".join(f", {name.rpartition('.')[2]}" for name in rest)
        yield f"One call each in Python: {first}{others}."


def _on(moment: Moment, now: Prediction) -> str:
    pipeline = now.training.layout.pipeline
    return f" of pipeline stage {moment.stage} of {pipeline}" if pipeline > 1 else ""


def _others(now: Prediction) -> str:
    rest: dict[str, int] = {}
    for moment in now.moments[1:]:
        if moment.name != now.peak.name:
            rest.setdefault(moment.name, moment.bytes)
    return ", ".join(f"at '{name}' {_gb(size)}" for name, size in list(rest.items())[:2])


def _ways(title: str, ways: Sequence[Way]) -> Iterator[str]:
    first = ways[0].prediction
    rows = [
        [
            way.name,
            "yes" if way.prediction.fits else "no",
            _gb(way.prediction.peak.bytes),
            _gb(way.prediction.host_bytes) if way.prediction.host_bytes else "",
            _ms(way.prediction.step_ns * first.tokens // way.prediction.tokens),
            way.prediction.bound,
            way.remark,
        ]
        for way in ways
    ]
    yield from grid([title, "fits", "GB", "host GB", "step ms", "bound by", ""], rows, {2, 3, 4})


def serving(found: Sequence[ServingOption], verdict: str) -> list[str]:
    """Memory by component, the time of prompts and tokens, and the ways to need less."""
    return list(_serving(found, verdict))


def _serving(found: Sequence[ServingOption], verdict: str) -> Iterator[str]:
    now = found[0].served
    s = now.serving
    yield (
        f"{s.shape.name}, {s.shape.parameters():,} parameters, on {s.layout.gpus} {s.gpu.name}; "
        f"{s.batch:,} sequence{'s' * (s.batch != 1)} of {s.prompt:,} + {s.generated:,} tokens"
    )
    yield verdict
    yield from _too_long(s.shape, s.prompt + s.generated)
    yield ""
    yield from _memory(now.parts, s.gpu.memory)
    yield ""
    rows = [[pace.name, _ms(pace.ns), pace.bound] for pace in now.paces]
    yield from grid(["time, predicted", "ms", "bound by"], rows, {1})
    yield f"  {now.tokens_per_second:,.0f} generated tokens/s over all GPUs"
    reload, again = _prefix(now)
    back = f"comes back in {_ms(reload)} ms over the link"
    yield f"  a cached prompt {back}; computing it takes {_ms(again)} ms"
    yield ""
    rows = [
        [
            option.name,
            "yes" if option.served.fits else "no",
            _gb(option.served.bytes),
            _ms(option.served.paces[0].ns),
            _ms(option.served.paces[1].ns),
            f"{option.served.tokens_per_second:,.0f}",
            option.remark,
        ]
        for option in found
    ]
    head = ["each way alone, predicted", "fits", "GB", "prompts ms", "token ms", "tokens/s", ""]
    yield from grid(head, rows, {2, 3, 4, 5})
    yield ""
    yield from _applied([option.apply for option in found])
    yield _card(s.gpu)
    yield f"Link card {s.link.name}: {s.link.into / 1e9:.0f} GB/s in; {s.link.status}."


def _prefix(now: Served) -> tuple[int, int]:
    """Nanoseconds to bring one prompt's cache back, and to compute it again."""
    s = now.serving
    reload = now.cached(s.prompt) / s.link.into * 1e9
    return round(reload), now.paces[0].ns // s.batch


def training_data(ranking: Ranking) -> dict[str, Any]:
    """The same as plain data; sizes in bytes, times in nanoseconds."""
    t = ranking.asked.prediction.training
    return {
        "kind": "plan train",
        "format": 1,
        "status": "predicted",
        "model": t.shape.name,
        "parameters": t.shape.parameters(),
        "gpu": t.gpu.name,
        "gpu_status": t.gpu.provenance,
        "gpu_memory_bytes": t.gpu.memory,
        "sustained_flops": t.gpu.sustained,
        "link": t.link.name,
        "link_status": t.link.status,
        "verdict": ranking.verdict,
        "headline": list(ranking.headline.changes),
        "settings": [
            {
                "framework": found.framework,
                "command": found.command,
                "files": found.files,
                "besides": list(found.besides),
            }
            for found in apply.settings(ranking.headline.prediction.training)
        ],
        "longest_sequence": t.shape.longest or None,
        "asked": _way(ranking.asked),
        "alone": [_way(way) for way in ranking.alone],
        "layouts": [_way(way) for way in ranking.layouts],
        "ways": [_way(way) for way in ranking.ways],
    }


def _way(way: Way) -> dict[str, Any]:
    now = way.prediction
    return {
        "changes": list(way.changes),
        "apply": list(way.apply),
        "fits": now.fits,
        "peak_bytes": now.peak.bytes,
        "peak_at": now.peak.name,
        "pipeline_stage": now.peak.stage,
        "parts": [{"name": p.name, "bytes": p.bytes, "why": p.why} for p in now.peak.parts],
        "moments": [{"name": m.name, "stage": m.stage, "bytes": m.bytes} for m in now.moments],
        "host_bytes": now.host_bytes,
        "offloaded_layers": now.training.offloaded,
        "step_ns": now.step_ns,
        "spans": [{"name": s.name, "ns": s.ns, "bound": s.bound} for s in now.spans],
        "bound": now.bound,
        "attention_share": now.attention_share,
        "tokens": now.tokens,
        "tokens_per_second_and_gpu": now.tokens_per_second_and_gpu,
        "remark": way.remark,
    }


def serving_data(found: Sequence[ServingOption], verdict: str) -> dict[str, Any]:
    """The same as plain data; sizes in bytes, times in nanoseconds."""
    s = found[0].served.serving
    return {
        "kind": "plan serve",
        "format": 1,
        "status": "predicted",
        "model": s.shape.name,
        "parameters": s.shape.parameters(),
        "gpu": s.gpu.name,
        "gpu_status": s.gpu.provenance,
        "gpu_memory_bytes": s.gpu.memory,
        "sustained_flops": s.gpu.sustained,
        "link": s.link.name,
        "link_status": s.link.status,
        "verdict": verdict,
        "ways": [
            {
                "name": option.name,
                "apply": list(option.apply),
                "fits": option.served.fits,
                "bytes": option.served.bytes,
                "parts": [{"name": p.name, "bytes": p.bytes, "why": p.why} for p in option.served.parts],
                "host_bytes": option.served.host_bytes,
                "largest_batch": option.served.largest_batch,
                "times": [{"name": p.name, "ns": p.ns, "bound": p.bound} for p in option.served.paces],
                "tokens_per_second": option.served.tokens_per_second,
                "remark": option.remark,
            }
            for option in found
        ],
    }
