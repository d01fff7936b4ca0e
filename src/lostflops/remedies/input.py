"""Remedies for jobs that wait for their input."""

from .remedy import Remedy

REMEDIES = (
    Remedy(
        "loader-workers",
        {
            "pytorch": "Give the loader worker processes: `DataLoader(num_workers=4, "
            "persistent_workers=True)` "
            "(the default is 0).",
            "hf": "Give the loader worker processes: `dataloader_num_workers=4` and "
            "`dataloader_persistent_workers=True` in `TrainingArguments` (the default is 0).",
            "lightning": "Give the loader worker processes: `DataLoader(num_workers=4, "
            "persistent_workers=True)` in the data module (the default is 0).",
            "accelerate": "Give the loader worker processes: `DataLoader(num_workers=4, "
            "persistent_workers=True)` before `accelerator.prepare`, which keeps them.",
            "deepspeed": "Give the loader worker processes: `deepspeed.initialize(training_data=…)` starts "
            "them (`num_local_io_workers`); a `DataLoader` of your own needs `num_workers=4`.",
            "megatron": "Give the loader more worker processes: `--num-workers 8` (the default is 2).",
            "bridge": "Give the loader more worker processes: `cfg.dataset.num_workers = 8` (the default "
            "is 2).",
            "torchtitan": "Give the loader worker processes: `config.dataloader.num_workers = 4` and "
            "`persistent_workers = True` (the default is 0).",
        },
        on="workers",
        more={
            "pytorch": "The loader has workers already, and they are too slow: raise `num_workers` while "
            "cores "
            "are free. A larger `prefetch_factor` helps against slow single samples only.",
            "hf": "The loader has workers already, and they are too slow: raise `dataloader_num_workers` "
            "while "
            "cores are free. A larger `dataloader_prefetch_factor` helps against slow single samples only.",
            "megatron": "The loader's workers are too slow: raise `--num-workers` while cores are free.",
            "bridge": "The loader's workers are too slow: raise `cfg.dataset.num_workers` while cores are "
            "free.",
            "torchtitan": "The loader has workers already, and they are too slow: raise "
            "`config.dataloader.num_workers` while cores are free.",
        },
    ),
    Remedy(
        "tokenise-ahead",
        {
            "pytorch": "If the cores are busy: preprocess the data set once, store it, and map it into "
            "memory.",
            "hf": "If the cores are busy: tokenise once before training, `dataset.map(…, batched=True, "
            "num_proc=8)`.",
            "accelerate": "If the cores are busy: tokenise once before training, `dataset.map(…, "
            "batched=True, "
            "num_proc=8)`.",
            "megatron": "If the cores are busy: tokenise once with `tools/preprocess_data.py`; "
            "`--dataloader-fast-cache-load` shortens the start.",
            "bridge": "If the cores are busy: pack and tokenise offline (`enable_offline_packing=True`).",
        },
    ),
    Remedy(
        "pinned-copies",
        {
            "pytorch": "Pin the host's memory and copy without waiting: `DataLoader(pin_memory=True)` and "
            "`.to(device, non_blocking=True)`.",
            "hf": 'Copy without waiting: `accelerator_config={"non_blocking": True}` in `TrainingArguments`; '
            "batches are pinned by default, but `non_blocking` is off.",
            "accelerate": "Copy without waiting: `DataLoaderConfiguration(non_blocking=True)` with a "
            "`DataLoader(pin_memory=True)`; it is off by default.",
            "lightning": "Give the `DataLoader` `pin_memory=True`; Lightning copies without waiting by "
            "itself.",
            "bridge": "Keep `cfg.dataset.pin_memory = True` (the default) for the batches, and pin what "
            "else is "
            "copied.",
            "megatron": "Batches are pinned already: pin what else is copied, with `non_blocking=True`.",
            "torchtitan": "Pin the batches: `config.dataloader.pin_memory = True` (the default is False).",
        },
    ),
    Remedy(
        "even-lengths",
        {
            "pytorch": "Give the ranks like amounts of work: batches of like sequence lengths (a bucketing "
            "sampler), or packing with `torch.nn.attention.varlen`.",
            "hf": "Give the ranks like amounts of work: <group by length>, or packing (TRL: `packing=True`).",
            "bridge": "Give the ranks like amounts of work: `enable_in_batch_packing=True`, or stages and "
            "experts of one cost.",
            "megatron": "Give the ranks like amounts of work: for experts `--moe-router-load-balancing-type "
            "aux_loss`, for stages `--pipeline-model-parallel-layout`.",
            "torchtitan": "Give the ranks like amounts of work: sequences are packed by default, so look at "
            "experts and stages (`pipeline_parallel_first_stage_less_layers`).",
        },
    ),
)
