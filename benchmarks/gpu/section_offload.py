"""Activation offload beside what others offer, on one model in the same run: step, peak, and what was hidden.

The base is the model as it is; *checkpointed* is transformers' own `gradient_checkpointing_enable`, not
reentrant. *inputs* moves only what checkpointed layers keep, *all* everything that autograd saves, and *free*
what the engine chooses by itself. Bit-exact: the gradients of one microbatch against those without it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from page import gb, ms, share, table
from setting import Case, Setting, in_turns, middle, trained

from lostflops.optimize.device import host_share

TITLE = "Activation offload"


def rows(setting: Setting) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for tokens in setting.tokens:
        everything = tokens == min(setting.tokens)  # of longer ones that is more than a host has
        model = setting.model()
        batch = setting.batch(tokens, model.config.vocab_size)
        cases = {
            name: _case(setting, model, batch, context, checkpointed)
            for name, (context, checkpointed) in _contexts(setting, model).items()
            if everything or not name.startswith("all:")
        }
        exact = _exact(setting, model, batch, cases)
        measured = in_turns(setting.part(tokens), cases, about={"tokens": tokens}, after=found)
        found += [{**row, "bit_exact": exact.get(row["case"])} for row in measured]
        setting.save(found)
        del model, batch, cases
        setting.clear()
    return found


def _contexts(setting: Setting, model: Any) -> dict[str, tuple[Callable[[], Any] | None, bool]]:
    from lostflops import optimize

    def ours(**how: Any) -> Callable[[], Any]:
        return lambda: optimize.offload(model, device=setting.engine_device(), **how)

    def trl() -> Any:
        from trl.models.activation_offloading import get_act_offloading_ctx_manager

        return get_act_offloading_ctx_manager(model, warn_if_no_head=False)

    def save_on_cpu() -> Any:
        return torch.autograd.graph.save_on_cpu(pin_memory=not setting.threads)

    least = {"threshold": 256} if setting.threads else {}
    return {
        "as it is": (None, False),
        "checkpointed": (None, True),
        "checkpointed, inputs: save_on_cpu": (save_on_cpu, True),
        "checkpointed, inputs: TRL": (trl, True),
        "checkpointed, inputs: lostflops": (ours(plan="everything", **least), True),
        "all: save_on_cpu": (save_on_cpu, False),
        "all: TRL": (trl, False),
        "all: lostflops": (ours(plan="everything", **least), False),
        "free: lostflops": (ours(**least), False),
    }


def _case(
    setting: Setting, model: Any, batch: Any, context: Callable[[], Any] | None, checkpointed: bool
) -> Case:
    kept: list[Any] = []  # an engine that has its host memory: pinning it anew in each turn takes minutes

    def keep(engine: Any) -> None:
        if hasattr(engine, "report") and engine.report().host_held_bytes <= host_share.memory() // 4:
            kept.append(engine)

    def case(undo: ExitStack) -> Any:
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            undo.callback(model.gradient_checkpointing_disable)
        engine = kept.pop() if kept else context() if context else None
        if engine is not None:
            undo.enter_context(engine)
            undo.callback(keep, engine)
        return trained(model, batch, remedy=engine)

    return case


def _exact(setting: Setting, model: Any, batch: Any, cases: dict[str, Case]) -> dict[str, bool | None]:
    """Whether a second microbatch gives the gradients of the plain model, where two plain ones agree."""
    # The embedding's gradient is added up in no fixed order on GPUs.
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found: dict[str, bool | None] = {}
        base: list[torch.Tensor] | None = None
        for name, case in cases.items():
            try:
                with ExitStack() as undo:
                    case(undo)()  # the engine learns
                    model(**batch).loss.backward()
                    now = [p.grad for p in model.parameters() if p.grad is not None]
            except Exception:  # whatever a peer raises; its turn will say what
                found[name] = None
                continue
            finally:
                model.zero_grad(set_to_none=True)
            base = base or now
            found[name] = all(torch.equal(a, b) for a, b in zip(base, now, strict=True))
        return found
    finally:
        torch.use_deterministic_algorithms(before)


def page(rows: list[dict[str, Any]]) -> str:
    bases = {row["tokens"]: row for row in rows if row["case"] == "as it is"}
    checkpointed = {row["tokens"]: row for row in rows if row["case"] == "checkpointed"}
    found: list[tuple[Any, ...]] = []
    for row in rows:
        beside = (checkpointed if row["case"].startswith("checkpointed,") else bases)[row["tokens"]]
        step = middle(row["step_ns"])
        report = row.get("report") or {}
        out, into = report.get("out", {}), report.get("into", {})
        found.append((
            row["tokens"],
            row["case"],
            ms(step),
            share(step, middle(beside["step_ns"])),
            gb(row["peak_bytes"]),
            _percent(out.get("hidden")),
            _percent(into.get("hidden")),
            gb(out.get("bytes_per_second")),
            _percent(out.get("share_of_link")),
            {True: "yes", False: "no", None: "–"}[row.get("bit_exact")],
            row.get("failed", ""),
        ))  # fmt: skip
    header = (
        "tokens",
        "",
        "step, ms",
        "over none",
        "peak, GB",
        "hidden out",
        "hidden in",
        "out, GB/s",
        "of the link",
        "bit-exact",
        "failed",
    )
    return table(header, found)


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{part:.1%}"
