"""Snippets are held to the frameworks that are installed here: names exist, and take these arguments."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version as installed
from importlib.util import find_spec
from typing import Any

import pytest
from test_contract_of_remedies import sides

from lostflops.remedies import REMEDIES, Snippet
from lostflops.remedies.snippet import version

# Found and not imported: that takes seconds, and every process that runs tests reads this file.
FRAMEWORKS = ("torch", "transformers", "accelerate", "pytorch_lightning", "deepspeed")
if missing := [name for name in FRAMEWORKS if find_spec(name) is None]:
    pytest.skip(f"{missing[0]} is not installed", allow_module_level=True)

# Where a snippet's class or function lives; what a user calls their own is not here.
PLACES = {
    "transformers": ("TrainingArguments", "DataCollatorWithPadding", "DataCollatorWithFlattening"),
    "accelerate": ("Accelerator", "DataLoaderConfiguration", "DistributedDataParallelKwargs"),
    "accelerate.utils": ("GradientAccumulationPlugin", "TorchDynamoPlugin", "DDPCommunicationHookType"),
    "accelerate.parallelism_config": ("ParallelismConfig",),
    "pytorch_lightning": ("Trainer",),
    "pytorch_lightning.strategies": (
        "DDPStrategy", "FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy",
    ),
    "pytorch_lightning.plugins": ("AsyncCheckpointIO",),
    "torch.utils.data": ("DataLoader",),
    "torch.utils.checkpoint": ("checkpoint",),
    "torch.nn.attention": ("sdpa_kernel",),
    "torch.nn.parallel": ("DistributedDataParallel",),
    "torch.distributed.fsdp": ("MixedPrecisionPolicy", "CPUOffloadPolicy", "fully_shard"),
    "torch.distributed.checkpoint": ("async_save",),
    "torch.distributed.pipelining": ("Schedule1F1B", "ScheduleInterleaved1F1B"),
    "torch.distributed.optim": ("ZeroRedundancyOptimizer",),
    "torch.distributed.device_mesh": ("init_device_mesh",),
    "torch.distributed.tensor.parallel": ("parallelize_module",),
    "torch.distributed._symmetric_memory": ("enable_symm_mem_for_group",),
}  # fmt: skip
MODULE_OF = {name: module for module, names in PLACES.items() for name in names}
HERE = {
    package: version(installed(package).partition("+")[0])
    for package in ("torch", "transformers", "accelerate", "deepspeed")
}


def spelled(language: str) -> Iterator[tuple[str, str, Snippet]]:
    """The snippets for what is installed here, with their remedy and framework."""
    for remedy in REMEDIES.values():
        for key, change in remedy.changes.items():
            for snippet in change.snippets:
                if snippet.language == language and snippet.taken_by(HERE):
                    yield remedy.name, key, snippet


def refused(called: Any, keywords: list[ast.keyword]) -> list[str]:
    """The arguments that a function or a class does not take."""
    try:
        known = inspect.signature(called).parameters
    except (TypeError, ValueError):  # of C
        return []
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return []
    return [word.arg for word in keywords if word.arg and word.arg not in known]


def test_what_python_snippets_import_is_there() -> None:
    for remedy, key, snippet in spelled("python"):
        for side in sides(snippet):
            for node in ast.walk(ast.parse(side)):
                if isinstance(node, ast.ImportFrom) and node.module and "torchao" not in node.module:
                    module = import_module(node.module)
                    for alias in node.names:
                        submodule = f"{node.module}.{alias.name}"
                        assert hasattr(module, alias.name) or import_module(submodule), (
                            remedy,
                            key,
                            alias.name,
                        )


def test_what_python_snippets_call_takes_these_arguments() -> None:
    checked = set[str]()
    for remedy, key, snippet in spelled("python"):
        for side in sides(snippet):
            for node in ast.walk(ast.parse(side)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in MODULE_OF
                ):
                    name = node.func.id
                    called = getattr(import_module(MODULE_OF[name]), name)
                    assert not refused(called, node.keywords), (remedy, key, name)
                    checked.add(name)
    assert len(checked) >= 20, f"only {sorted(checked)} were found in snippets"


def test_dotted_names_of_torch_are_there() -> None:
    import torch
    import torch._dynamo
    import torch._inductor.config
    import torch.distributed

    for remedy, key, snippet in spelled("python"):
        for side in sides(snippet):
            for node in ast.walk(ast.parse(side)):
                if not isinstance(node, ast.Attribute):
                    continue
                first, *rest = ast.unparse(node).split(".")
                if first != "torch" or not all(part.isidentifier() for part in rest):
                    continue
                found: Any = torch
                for part in rest:
                    assert hasattr(found, part), (remedy, key, ast.unparse(node))
                    found = getattr(found, part)


def test_flags_of_accelerate_are_taken() -> None:
    from accelerate.commands.launch import launch_command_parser

    lines = [
        line
        for _, _, snippet in spelled("shell")
        for line in snippet.text.replace("\\\n", "").splitlines()
        if line.startswith("accelerate launch")
    ]
    assert len(lines) >= 10
    for line in lines:
        words = shlex.split(line, comments=True)[2:]
        assert launch_command_parser().parse_args(words).training_script == "train.py", line


def test_deepspeed_takes_its_json() -> None:
    config = import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    known = {name for key, field in config.model_fields.items() for name in (key, field.alias)}
    seen = 0
    for remedy, key, snippet in spelled("json"):
        zero = json.loads(snippet.text).get("zero_optimization", {})
        assert set(zero) <= known, (remedy, key)
        config(**zero)
        seen += bool(zero)
    assert seen >= 5
