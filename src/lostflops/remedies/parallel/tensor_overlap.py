"""Tensor-parallel communication under matrix products."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="tensor-overlap",
    does="The collectives of tensor parallelism run in pieces under the matrix products that need them.",
    changes={
        "pytorch": Change(
            "Overlap it with the matrix products: async tensor parallelism under `torch.compile` "
            "(`torch._inductor.config._micro_pipeline_tp = True` with "
            "`enable_symm_mem_for_group(group_name)`).",
            snippets=(
                python(
                    "torch._inductor.config._micro_pipeline_tp = True",
                    'enable_symm_mem_for_group(mesh["tensor"].get_group().group_name)',
                    "model = torch.compile(model)",
                ),
            ),
        ),
        "hf": Change(
            instead="The Trainer has nothing for it.",
        ),
        "accelerate": Change(
            instead="Accelerate has nothing for it.",
        ),
        "lightning": Change(
            instead="Lightning has nothing for it.",
        ),
        "deepspeed": Change(
            instead="DeepSpeed has nothing for it.",
        ),
        "megatron": Change(
            "Overlap it with the matrix products: `--tp-comm-overlap` (it needs "
            "`--sequence-parallel` and Transformer Engine; on Hopper and before "
            "`CUDA_DEVICE_MAX_CONNECTIONS=1`).",
            snippets=(shell("--tp-comm-overlap --sequence-parallel"),),
        ),
        "bridge": Change(
            "Overlap it with the matrix products: `CommOverlapConfig(tp_comm_overlap=True)` "
            "(silently off without sequence parallelism or Transformer Engine).",
            snippets=(
                python(
                    "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)",
                    "cfg.model.sequence_parallel = True",
                ),
            ),
        ),
        "torchtitan": Change(
            "Overlap it with the matrix products: `compile.enable_async_tensor_parallel=True` "
            "with `compile.enable=True`.",
            snippets=(
                python("config.compile.enable = True", "config.compile.enable_async_tensor_parallel = True"),
            ),
        ),
    },
    safety="numerically close",
    when="Collectives of the tensor-parallel group are exposed.",
    safe="Products are summed in pieces.",
    costs="Multiprocessors and buffers for the communication.",
    limits="Not with shapes that vary. Megatron on Hopper and before needs "
    "`CUDA_DEVICE_MAX_CONNECTIONS=1`, which FSDP must not have.",
    seen="Kernels called `userbuffers` or `multimem` run under matrix products.",
    recipe="communication_exposed",
    edit="overlap",
)
