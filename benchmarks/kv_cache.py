"""Time to the first token of a dialogue's next turn: keys and values brought back, or computed again.

    python benchmarks/kv_cache.py                    on the CPU, in under a minute; prints a table
    python benchmarks/kv_cache.py --json FILE        and writes every single time down
    python benchmarks/kv_cache.py --device cuda --hidden 4096 --layers 32 --prefixes 1024 4096 16384

A Llama of random weights answers a history of so many tokens and a question of 16 with one token, in three
ways, in turns: from nothing, from a DialogueCache, and from a cache that never left. On the CPU both
"memories" are the same one and copies share the cores with compute: the table shows that the arithmetic of
the page holds, not what a GPU does."""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from lostflops import optimize
from lostflops.optimize.device.devices import CudaDevice, ThreadedDevice

QUESTION = 16  # new tokens in the turn that is timed
WORDS = 1000


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    device = torch.device(given.device)
    model = llama(given, device)
    engine: Any = CudaDevice(device) if device.type == "cuda" else ThreadedDevice()
    cache = optimize.DialogueCache(given.host, device=engine)
    measured(model, cache, QUESTION, 1)  # takes the memory, warms up
    rows = [measured(model, cache, n, given.repeats) for n in given.prefixes]
    record = {
        "kind": "kv cache benchmark",
        "format": 1,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {platform.machine()}",
        "threads": given.threads,
        "torch": str(torch.__version__),
        "model": {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": given.layers,
            "hidden": given.hidden,
            "dtype": str(model.dtype).removeprefix("torch."),
        },
        "question_tokens": QUESTION,
        "repeats": given.repeats,
        "rows": rows,
        "report": cache.report().to_json(),
    }
    print(table(record))
    if given.json:
        given.json.write_text(json.dumps(record, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--hidden", type=int, default=384, help="width of the model")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--prefixes", type=int, nargs="+", default=[128, 256, 512, 1024], metavar="TOKENS")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--host", default="64 MiB", help="memory for the DialogueCache")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def llama(given: argparse.Namespace, device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=given.hidden,
        intermediate_size=int(2.75 * given.hidden),
        num_hidden_layers=given.layers,
        num_attention_heads=given.hidden // 64,
        num_key_value_heads=max(1, given.hidden // 192),
        max_position_embeddings=1 << 17,
    )
    model: Any = LlamaForCausalLM(config).eval()
    return model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def measured(model: Any, cache: Any, prefix: int, repeats: int) -> dict[str, Any]:
    """Milliseconds to the first token, each way, in turns; the answers and the bits must agree."""
    ids = torch.randint(1, WORDS, (1, prefix + QUESTION), device=model.device)
    with torch.no_grad():
        stayed = model(ids[:, :prefix], use_cache=True).past_key_values
    start = now(model)
    cache.suspend(f"{prefix}", stayed, ids[:, :prefix])
    cache.flush()
    suspend = 1e3 * (now(model) - start)
    back = cache.resume(tokens=ids)
    assert all(
        torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)
        for a, b in zip(back.layers, stayed.layers, strict=True)
    ), "other bits came back"
    del back

    times: dict[str, list[float]] = {"recompute": [], "reload": [], "stayed": []}
    answers: dict[str, int] = {}
    for turn in range(repeats + 1):
        for name in times:
            past = copy.deepcopy(stayed) if name == "stayed" else None  # generate makes it grow
            start = now(model)
            if name == "reload":
                past = cache.resume(tokens=ids)
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=past,
                max_new_tokens=1,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
            if turn:  # the first one warms up
                times[name].append(1e3 * (now(model) - start))
            answers[name] = int(output[0, -1])
    # A prefill of everything at once rounds otherwise than one that goes on from kept rows.
    assert answers["reload"] == answers["stayed"], f"different answers: {answers}"
    return {
        "prefix_tokens": prefix,
        "bytes": prefix * cache.report().bytes_per_token,
        "suspend_ms": suspend,
        **{f"{name}_ms": statistics.median(found) for name, found in times.items()},
        "times_ms": times,
    }


def now(model: Any) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def table(record: dict[str, Any]) -> str:
    model, repeats = record["model"], record["repeats"]
    size = f"{model['parameters'] / 1e6:.1f} million parameters, {model['layers']} layers, {model['dtype']}"
    where = f"measured on {record['device']}, threads: {record['threads']}, torch {record['torch']}"
    lines = [
        f"{size}; {where}",
        f"ms to the first token, {record['question_tokens']} new ones; medians of {repeats} in turns",
        "",
        "| tokens held | MB | recompute | reload | stayed | recompute / reload | suspend |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in record["rows"]:
        slow, fast, least, out = (row[f"{name}_ms"] for name in ("recompute", "reload", "stayed", "suspend"))
        lines.append(
            f"| {row['prefix_tokens']:,} | {row['bytes'] / 1e6:.2f} | {slow:.1f} | {fast:.1f} | {least:.1f} "
            f"| {slow / fast:.1f} | {out:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
