"""What to change, in the words of the framework that the job uses.

One file per subject holds the remedies; `FOR` says which finding asks for which, the best first.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from .framework import setting
from .remedy import FRAMEWORKS, Remedy, Setting

__all__ = ["FOR", "FRAMEWORKS", "REMEDIES", "Remedy", "Setting", "advice", "setting"]

REMEDIES: Mapping[str, Remedy] = {
    remedy.name: remedy
    for module in pkgutil.iter_modules(__path__, f"{__name__}.")
    for remedy in getattr(import_module(module.name), "REMEDIES", ())
}
FOR: Mapping[str, tuple[str, ...]] = {
    "data-loading-starves-device": ("loader-workers", "tokenise-ahead"),
    "copies-pageable": ("pinned-copies",),
    "uneven-work": ("even-lengths",),
    "fp32-without-tensor-cores": ("bf16", "fp16", "tf32"),
    "fp64-without-tensor-cores": ("no-float64",),
    "communication-exposed": ("accumulate", "overlap"),
    "communication-exposed-gradients": ("accumulate", "overlap"),
    "communication-exposed-shards": ("overlap", "accumulate"),
    "communication-exposed-tensor": ("tensor-overlap", "tensor-inside-node"),
    "communication-exposed-experts": ("expert-overlap",),
    "communication-exposed-exchange": ("exchange",),
    "communication-exposed-stages": ("bubble",),
    "collectives-small": ("buckets",),
    "pipeline-bubble": ("bubble",),
    "uneven-stages": ("stage-balance",),
    "host-waits-for-device": ("remove-syncs",),
    "launch-bound": ("compile", "cuda-graphs", "fused-optimizer", "larger-batch"),
    "garbage-collection-inside-step": ("gc-freeze",),
    "checkpoint-inside-step": ("async-checkpoint",),
    "logging-inside-step": ("log-less",),
    "compilation-inside-step": ("steady-shapes",),
    "allocator-stalls": ("allocator",),
}
MOST = 2  # changes that a finding names


def advice(finding: str, job: Setting, otherwise: str) -> str:
    """What to do about a finding in this job; `otherwise` where no remedy is known or all are on."""
    said: list[str] = []
    for name in FOR.get(finding, ()):
        remedy = REMEDIES[name]
        on = remedy.on in job.on
        text = job.text(remedy.more if on else remedy.change) if job.allows(remedy) else ""
        if text and len(said) < MOST:
            notes = () if on else (remedy.note, remedy.unsure if job.units is None else "")
            said.append(" ".join(filter(None, (text, *notes))))
    if said and job.deepspeed:
        said += _deepspeed(finding, job)
    return " ".join(said) or otherwise


def _deepspeed(finding: str, job: Setting) -> list[str]:
    """DeepSpeed's own part of the change, for a job that another framework drives."""
    for name in FOR.get(finding, ()):
        text = REMEDIES[name].change.get("deepspeed", "")
        if text and '"' in text and job.allows(REMEDIES[name]):
            return [f"In DeepSpeed's JSON: {text[0].lower()}{text[1:]}"]
    return []
