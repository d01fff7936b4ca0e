"""LoRA and full fine-tuning in unified memory: what fits, and what does not, with the share of migrations.

A block of plain memory is held so that less than the model needs is left. The share of migrations is what the
step takes beyond the same step in plain memory; nothing records the migrations themselves.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import torch
from page import gb, ms, share, table
from setting import Case, Setting, in_turns, middle, trained

TITLE = "Unified memory"


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    about = {"case": "platform", "said": str(optimize.memory_capabilities())}
    if setting.threads:
        return [about]
    tokens = setting.tokens[0]

    def of(lora: bool, managed: bool, left: float | None) -> Case:
        """`left`: of what the plain step needs, this share of memory is free."""

        def case(undo: ExitStack) -> Any:
            optimize.release_managed()  # what the case before has left
            free = torch.cuda.mem_get_info()[0]
            memory = undo.enter_context(optimize.managed()) if managed else None
            model = setting.model("1b")
            if lora:
                optimize.lora(model)
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
            step = trained(model, setting.batch(tokens, model.config.vocab_size), optimizer)
            if left is not None:
                step()
                needed = memory.report().most_bytes if memory else torch.cuda.max_memory_allocated()
                # On a thread of its own: this one's memory is managed, and would make way.
                with ThreadPoolExecutor(1) as other:
                    take = torch.cuda.caching_allocator_alloc
                    plain = other.submit(take, max(0, free - int(left * needed))).result()
                undo.callback(torch.cuda.caching_allocator_delete, plain)

            def with_report() -> Any:
                step()
                return memory.report().record() if memory else None

            return with_report

        return case

    cases: dict[str, Case] = {}
    for name, lora in (("LoRA", True), ("full", False)):
        cases[f"{name}, plain"] = of(lora, False, None)
        cases[f"{name}, managed, fits"] = of(lora, True, None)
        if not setting.within:
            cases[f"{name}, managed, 3/4 fits"] = of(lora, True, 0.75)
    return [about, *in_turns(setting, cases, warm_up=2, steps=2)]


def page(rows: list[dict[str, Any]]) -> str:
    said = "\n".join(row["said"] for row in rows if "said" in row)
    timed = [row for row in rows if "step_ns" in row]
    bases = {row["case"].partition(",")[0]: middle(row["step_ns"]) for row in timed if "plain" in row["case"]}
    found: list[tuple[Any, ...]] = []
    for row in timed:
        step, base = middle(row["step_ns"]), bases[row["case"].partition(",")[0]]
        part = None if step is None or base is None else f"{max(0.0, 1 - base / step):.1%}"
        managed = (row.get("report") or {}).get("most_bytes")
        found.append((row["case"], ms(step), share(step, base), part, gb(managed), row.get("failed", "")))
    header = ("", "step, ms", "over plain", "share of migrations", "managed, GB", "failed")
    return "\n\n".join([f"```text\n{said}\n```", *([table(header, found)] if found else [])])
