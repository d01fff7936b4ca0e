"""What to change, in the words of the framework that the job uses.

One file per subject holds the remedies; a finding names those that it asks for, where it is declared.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module

from .framework import setting
from .remedy import FRAMEWORKS, Remedy, Setting

__all__ = ["FRAMEWORKS", "REMEDIES", "Remedy", "Setting", "advice", "setting"]

REMEDIES: Mapping[str, Remedy] = {
    remedy.name: remedy
    for module in pkgutil.iter_modules(__path__, f"{__name__}.")
    for remedy in getattr(import_module(module.name), "REMEDIES", ())
}
MOST = 2  # changes that a finding names


def advice(asked: Sequence[str], job: Setting, otherwise: str) -> str:
    """What to do in this job, of the remedies asked for, the best first; `otherwise` where none is left."""
    said: list[str] = []
    for name in asked:
        remedy = REMEDIES[name]
        on = remedy.on in job.on
        text = job.text(remedy.more if on else remedy.change) if job.allows(remedy) else ""
        if text and len(said) < MOST:
            notes = () if on else (remedy.note, remedy.unsure if job.units is None else "")
            said.append(" ".join(filter(None, (text, *notes))))
    if said and job.deepspeed:
        said += _deepspeed(asked, job)
    return " ".join(said) or otherwise


def _deepspeed(asked: Sequence[str], job: Setting) -> list[str]:
    """DeepSpeed's own part of the change, for a job that another framework drives."""
    for name in asked:
        remedy = REMEDIES[name]
        if remedy.is_in_deepspeed_json and job.allows(remedy):
            text = remedy.change["deepspeed"]
            return [f"In DeepSpeed's JSON: {text[0].lower()}{text[1:]}"]
    return []
