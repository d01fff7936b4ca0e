"""Checkpoints written in the background."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="async-checkpoint",
    does="The step waits for the copy to host memory only; the file is written while training goes on.",
    changes={
        "pytorch": Change(
            "Save in the background: `torch.distributed.checkpoint.async_save`, with a CPU backend "
            '(`init_process_group("cpu:gloo,cuda:nccl")`, without a GPU `"gloo"`) and '
            "`async_checkpointer_type=AsyncCheckpointerType.PROCESS`; or save less often.",
            snippets=(
                python(
                    "from torch.distributed.checkpoint.state_dict_saver import (",
                    "    AsyncCheckpointerType,",
                    "    async_save,",
                    ")",
                    "",
                    '# Without a GPU: "gloo".',
                    'torch.distributed.init_process_group("cpu:gloo,cuda:nccl")',
                    "saving = async_save(",
                    "    state,",
                    "    checkpoint_id=path,",
                    "    async_checkpointer_type=AsyncCheckpointerType.PROCESS,",
                    ")",
                ),
            ),
            note="The default is a thread, which shares Python's lock with the training and needs no process "
            "group. A job of one process has a group where `torchrun --nproc-per-node 1` starts it.",
        ),
        "hf": Change(
            "Save less often: a larger `save_steps`, `save_only_model=True`, sharded state "
            "dicts. The Trainer cannot save in the background.",
            snippets=(python("TrainingArguments(save_steps=2000, save_only_model=True)"),),
        ),
        "accelerate": Change(
            "Save less often, and sharded: `--fsdp_state_dict_type SHARDED_STATE_DICT`.",
            snippets=(shell("accelerate launch --fsdp_state_dict_type SHARDED_STATE_DICT train.py"),),
        ),
        "lightning": Change(
            "Save in the background: `Trainer(plugins=[AsyncCheckpointIO()])` (a thread, not for "
            "sharded states); or save less often (`every_n_train_steps`).",
            snippets=(python("trainer = Trainer(plugins=[AsyncCheckpointIO()])"),),
        ),
        "deepspeed": Change(
            'Save less often, or in parallel: `"checkpoint": {"parallel_write": …}`.',
            snippets=(config('{"checkpoint": {"parallel_write": {"pipeline_stage": true}}}'),),
        ),
        "megatron": Change(
            "Save in the background: `--async-save --use-persistent-ckpt-worker --ckpt-format torch_dist`.",
            snippets=(shell("--async-save --use-persistent-ckpt-worker --ckpt-format torch_dist"),),
        ),
        "bridge": Change(
            "Save in the background: `cfg.checkpoint.async_save = True`.",
            snippets=(python("cfg.checkpoint.async_save = True"),),
            note="NeMo 2: `ckpt_async_save=True` of its recipes.",
        ),
        "torchtitan": Change(
            'Save in the background: `checkpoint.async_mode="async_with_pinned_mem"`.',
            snippets=(python('config.checkpoint.async_mode = "async_with_pinned_mem"'),),
        ),
    },
    safety="bit-identical",
    costs="Host memory for one checkpoint per rank.",
    limits="One checkpoint at a time: the next waits for the one before.",
    seen="Steps with a checkpoint hold copies from the device and no writing.",
    recipe="idle_names",
    edit="host:checkpoint-logging=0ms",
    is_in_deepspeed_json=True,
)
