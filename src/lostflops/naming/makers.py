"""Who made the accelerators of a job, and how advice that is written for NVIDIA's reads on theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

ALLOCATOR = (
    r"`PYTORCH_ALLOC_CONF=expandable_segments:True`(?: \(before torch 2\.9: "
    r"`PYTORCH_CUDA_ALLOC_CONF(?:=expandable_segments:True)?`\))?"
    r"|`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
)
FINDS_WAITS = r'torch\.cuda\.set_sync_debug_mode\("warn"\)'
CLOCKS, LINKS = (
    "`nvidia-smi -q -d PERFORMANCE`",
    "`nvidia-smi topo -m` and `nvidia-smi nvlink --status`",
)
PROCESSES = "`nvidia-smi`"
# Nsight Systems, and what holds for its maker's graphs alone.
NSIGHT = (
    (r", or `nsys [^`]*`(?:, or `[^`]*`)*", ""),
    (r", `nsys profile -t cuda --cuda-graph-trace=node`", ""),
    (r" With expandable segments, graphs of Transformer Engine need `NCCL_GRAPH_REGISTER=0`\.", ""),
)
# What PyTorch has for NVIDIA's and AMD's GPUs alone.
OF_CUDA = (
    (r"CUDA graphs shorten the pauses between small kernels", "`torch.compile` leaves fewer small kernels"),
    (r"`torch\.compile`, CUDA graphs, ", "`torch.compile`, "),
    (
        r'`torch\.backends\.cuda\.matmul\.fp32_precision = "tf32"`(?: \(before torch 2\.9: (`[^`]*`)\))?',
        '`torch.set_float32_matmul_precision("high")`',
    ),
    (r" Set it in one way only: once `fp32_precision` is set, reading `allow_tf32` raises\.", ""),
    (r", `torch\.cuda\.memory\._dump_snapshot\(…\)`", ""),
    (r" Not with tensors shared by CUDA IPC or with managed memory\.", ""),
)


def _device(kind: str, backend: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """What an accelerator of another kind is called in PyTorch, after what is its own."""
    return (
        *NSIGHT,
        *more,
        *OF_CUDA,
        (rf"; `{FINDS_WAITS}` finds them|{FINDS_WAITS}", ""),
        (r"\btorch\.cuda\.", f"torch.{kind}."),
        (r'"cuda"', f'"{kind}"'),
        (r"\bcuda:nccl\b", f"{kind}:{backend}"),
    )


@dataclass(frozen=True)
class Maker:
    """A maker by the names of its GPUs and of the calls to its runtime; `words` are put in others' place."""

    name: str
    gpus: str
    calls: str
    words: tuple[tuple[str, str], ...] = ()

    def spelled(self, advice: str) -> str:
        """The advice with the commands and the functions that there are for the maker's accelerators.

        >>> maker(["AMD Instinct MI300X"]).spelled("Record `A`, or `nsys profile -t cuda,nvtx,osrt`.")
        'Record `A`.'
        >>> maker([], ["urEnqueueKernelLaunch"]).spelled("Call `torch.cuda.empty_cache()` (`nvidia-smi`).")
        'Call `torch.xpu.empty_cache()` (`xpu-smi ps`).'
        """
        for theirs, own in self.words:
            advice = re.sub(theirs, own, advice)
        return advice


NVIDIA = Maker("NVIDIA", r"NVIDIA|GeForce|Quadro|Tesla|\bTITAN\b|\bGTX\b|\bRTX\b", r"^cu(?:da)?[A-Z]")
AMD = Maker(
    "AMD",
    r"AMD|Instinct|Radeon|gfx\d",
    r"^hip[A-Z]",
    (
        (re.escape(CLOCKS), "`amd-smi metric --clock --power --temperature`"),
        (re.escape(LINKS), "`amd-smi topology` and `amd-smi xgmi`"),
        (PROCESSES, "`amd-smi process`"),
        *NSIGHT,
    ),
)
INTEL = Maker(
    "Intel",
    r"Intel|\bArc\b",
    r"^(?:ur|ze|pi)[A-Z]",
    _device(
        "xpu",
        "xccl",
        (re.escape(CLOCKS), "`xpu-smi stats -d 0`"),
        (re.escape(LINKS), "`xpu-smi topology -m`"),
        (PROCESSES, "`xpu-smi ps`"),
        (ALLOCATOR, "`PYTORCH_ALLOC_CONF=expandable_segments:True`"),
    ),
)
ASCEND = Maker(
    "Ascend",
    r"Ascend",
    r"^(?:AscendCL@)?acl[a-z]*[A-Z]|^Node@launch",
    _device(
        "npu",
        "hccl",
        (re.escape(CLOCKS), "`npu-smi info -t common -i 0`"),
        (re.escape(LINKS), "`npu-smi info -t topo`"),
        (PROCESSES, "`npu-smi info`"),
        (ALLOCATOR, "`PYTORCH_NPU_ALLOC_CONF=expandable_segments:True`"),
        (FINDS_WAITS, 'torch_npu.npu.set_sync_debug_mode("warn")'),
    ),
)
HABANA = Maker(
    "Habana",
    r"\bHL-\d|Gaudi",
    r"^syn[A-Z]",
    _device(
        "hpu",
        "hccl",
        (re.escape(CLOCKS), "`hl-smi -q`"),
        (re.escape(LINKS), "`hl-smi -q`"),
        (PROCESSES, "`hl-smi`"),
        (rf"Set (?:{ALLOCATOR}), keep", "Keep"),
    ),
)
MOORE = Maker(
    "Moore Threads",
    r"\bMTT\b",
    r"^mu(?:sa)?[A-Z]",
    _device(
        "musa",
        "mccl",
        (rf"{re.escape(CLOCKS)}|{re.escape(LINKS)}|{PROCESSES}", "`mthreads-gmi`"),
        (ALLOCATOR, "`PYTORCH_MUSA_ALLOC_CONF=expandable_segments:True`"),
    ),
)
MAKERS = (NVIDIA, AMD, INTEL, ASCEND, HABANA, MOORE)
WITH_GRAPHS = frozenset({NVIDIA.name, AMD.name})  # whose graphs `torch.compile` and `torch.cuda` replay


def maker(gpus: Iterable[str], calls: Iterable[str] = ()) -> Maker | None:
    """Who made the GPUs with these names, failing that whose runtime these calls are of; None if unknown.

    >>> maker(["Intel(R) Data Center GPU Max 1550"]).name, maker(["", "NVIDIA H100"]).name, maker(["A"])
    ('Intel', 'NVIDIA', None)
    """
    for names, of in ((gpus, "gpus"), (calls, "calls")):
        names = [*names]
        for one in MAKERS:
            if any(re.search(getattr(one, of), name) for name in names):
                return one
    return None
