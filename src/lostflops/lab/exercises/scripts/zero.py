# pyright: basic
"""The model under DeepSpeed's ZeRO, in the stages 2 and 3."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from torch import nn


def engine(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> Any:
    """DeepSpeed's engine, whose `backward` and `step` take the place of the loss's and the optimizer's.

    Stage 3 gathers each weight where it is needed, and keeps none for later: so its gathers can be counted.
    """
    os.environ.setdefault("DS_ACCELERATOR", given.device)
    import deepspeed

    at_once = {
        "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0,
    }  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": given.micro_batch_size,
        "gradient_accumulation_steps": given.gradient_accumulation_steps,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2} if given.stage2 else {"stage": 3, **at_once},
        "steps_per_print": 1 << 30,
    }
    made, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    return made
