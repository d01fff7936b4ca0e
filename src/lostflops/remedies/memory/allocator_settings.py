"""PyTorch's allocator without stalls."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="allocator-settings",
    does="The allocator grows its segments instead of freeing and allocating device memory inside steps.",
    changes={
        "pytorch": Change(
            "Set <expandable segments>, keep the shapes steady, and take "
            "`torch.cuda.empty_cache()` out of the loop.",
            snippets=(
                shell("export PYTORCH_ALLOC_CONF=expandable_segments:True", since="torch 2.9"),
                shell("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", until="torch 2.9"),
                python("-torch.cuda.empty_cache()", " optimizer.step()", title="and"),
            ),
        ),
        "hf": Change(
            "Set <expandable segments>, keep the shapes steady, and leave `torch_empty_cache_steps` unset.",
            snippets=(
                shell("export PYTORCH_ALLOC_CONF=expandable_segments:True", since="torch 2.9"),
                shell("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", until="torch 2.9"),
                python("TrainingArguments(torch_empty_cache_steps=None)", title="and, the default"),
            ),
        ),
        "megatron": Change(
            "Set <expandable segments>, and keep `--empty-unused-memory-level 0`.",
            snippets=(
                shell("export PYTORCH_ALLOC_CONF=expandable_segments:True", since="torch 2.9"),
                shell("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", until="torch 2.9"),
                shell("--empty-unused-memory-level 0", title="and, the default"),
            ),
        ),
    },
    safety="bit-identical",
    when="Device memory is allocated or freed inside steps, or calls fail for lack of it while much "
    "is reserved.",
    costs="Virtual addresses only. Without `empty_cache` more memory stays reserved.",
    limits="Not with CUDA IPC (unless `TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1`), managed memory or "
    "`backend:cudaMallocAsync`; graphs of Transformer Engine need `NCCL_GRAPH_REGISTER=0`.",
    undo="Unset the variable.",
    seen="No `cudaMalloc` and no `cudaFree` is called inside steps.",
    recipe="api_call_summary",
    edit="host:memory-allocator=0ms",
    note="Not with tensors shared by CUDA IPC or with managed memory.",
)
