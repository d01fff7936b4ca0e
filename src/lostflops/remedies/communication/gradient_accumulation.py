"""Gradients of several micro-batches, sent once."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="gradient-accumulation",
    does="Gradients of several micro-batches are added up and sent once, in the last one.",
    changes={
        "pytorch": Change(
            "Send less often: accumulate gradients, and synchronise in the last micro-batch of a "
            "step only (DDP: `no_sync()`, FSDP2: `set_requires_gradient_sync(False)`).",
            snippets=(
                python(
                    "for i, batch in enumerate(micro_batches):",
                    "    last = i == len(micro_batches) - 1",
                    "    with nullcontext() if last else model.no_sync():  # DDP",
                    "        model(**batch).loss.backward()",
                    "optimizer.step()",
                ),
            ),
        ),
        "pytorch/ddp": Change(
            "Send less often: accumulate gradients under `model.no_sync()`, all but the last "
            "micro-batch of a step.",
            snippets=(
                python(
                    "for i, batch in enumerate(micro_batches):",
                    "    last = i == len(micro_batches) - 1",
                    "    with nullcontext() if last else model.no_sync():",
                    "        model(**batch).loss.backward()",
                    "optimizer.step()",
                ),
            ),
        ),
        "pytorch/fsdp": Change(
            "Send less often: accumulate gradients with "
            "`model.set_requires_gradient_sync(False)`, all but the last micro-batch of a step, "
            "if memory holds unsharded gradients.",
            snippets=(
                python(
                    "for i, batch in enumerate(micro_batches):",
                    "    model.set_requires_gradient_sync(i == len(micro_batches) - 1)",
                    "    model(**batch).loss.backward()",
                    "optimizer.step()",
                ),
            ),
        ),
        "hf": Change(
            "Send less often: raise `gradient_accumulation_steps`, whose last micro-batch alone sends.",
            snippets=(python("TrainingArguments(gradient_accumulation_steps=4)"),),
        ),
        "accelerate": Change(
            "Send less often: `GradientAccumulationPlugin(num_steps=k)`, without `sync_each_batch=True`.",
            snippets=(
                python(
                    "plugin = GradientAccumulationPlugin(num_steps=4)",
                    "accelerator = Accelerator(gradient_accumulation_plugin=plugin)",
                    "for batch in loader:",
                    "    with accelerator.accumulate(model):",
                    "        accelerator.backward(model(**batch).loss)",
                    "        optimizer.step()",
                ),
            ),
        ),
        "lightning": Change(
            "Send less often: `Trainer(accumulate_grad_batches=k)`.",
            snippets=(python("trainer = Trainer(accumulate_grad_batches=4)"),),
        ),
        "deepspeed": Change(
            "Send less often: raise `gradient_accumulation_steps` (in stages 2 and 3 every "
            "micro-batch still sends).",
            snippets=(config('{"gradient_accumulation_steps": 4}'),),
            note="Stages 2 and 3 send in every micro-batch, and their engines assert against `no_sync`.",
        ),
        "megatron": Change(
            snippets=(shell("--global-batch-size 1024"),),
            note="Megatron-LM's number of microbatches is the global batch, by the micro-batch and "
            "the data-parallel ranks. It sends after the last microbatch only: a larger global "
            "batch is what sends less often.",
        ),
        "bridge": Change(
            snippets=(python("cfg.train.global_batch_size = 1024"),),
            note="NeMo 2: `recipe.data.global_batch_size`. It sends after the last microbatch only: a larger "
            "global batch is what sends less often.",
        ),
        "torchtitan": Change(
            snippets=(python("config.training.global_batch_size = 1024"),),
            note="torchtitan's main branch calls it `num_tokens_per_train_step`. It sends in every "
            "micro-batch.",
        ),
    },
    safety="changes convergence",
    when="Gradients are sent in every micro-batch, or the global batch may grow.",
    safe="More micro-batches make the global batch larger. Numerically close where it stays the same "
    "and only the sending moves.",
    costs="Under FSDP the gradients stay whole between micro-batches: up to 4 bytes per parameter.",
    limits="ZeRO stages 2 and 3 still send in every micro-batch. Losses that are averaged over tokens "
    "need the count of all micro-batches.",
    seen="Collectives of gradients run once per optimizer step, in the last micro-batch.",
    recipe="communication_summary",
    on="no_sync",
    of_training=True,
)
