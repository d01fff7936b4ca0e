"""Worker processes for the data loader."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="loader-workers",
    does="Worker processes prepare the next batches while the step computes.",
    changes={
        "pytorch": Change(
            "Give the loader worker processes: `DataLoader(num_workers=4)` (the default is 0).",
            snippets=(
                python(
                    "-loader = DataLoader(dataset, batch_size=batch_size)",
                    "+loader = DataLoader(dataset, batch_size=batch_size, num_workers=4)",
                ),
            ),
        ),
        "hf": Change(
            "Give the loader worker processes: `dataloader_num_workers=4` in `TrainingArguments` "
            "(the default is 0).",
            snippets=(python("TrainingArguments(dataloader_num_workers=4)"),),
        ),
        "lightning": Change(
            "Give the loader worker processes: `DataLoader(num_workers=4)` in the data module "
            "(the default is 0).",
            snippets=(
                python(
                    "def train_dataloader(self):",
                    "    return DataLoader(self.dataset, batch_size=batch_size, num_workers=4)",
                ),
            ),
        ),
        "accelerate": Change(
            "Give the loader worker processes: `DataLoader(num_workers=4)` before "
            "`accelerator.prepare`, which keeps them.",
            snippets=(
                python(
                    "loader = DataLoader(dataset, batch_size=batch_size, num_workers=4)",
                    "loader = accelerator.prepare(loader)",
                ),
            ),
        ),
        "deepspeed": Change(
            "Give the loader worker processes: `deepspeed.initialize(training_data=…)` starts "
            "them (`num_local_io_workers`); a `DataLoader` of your own needs `num_workers=4`.",
            snippets=(
                python(
                    "-loader = DataLoader(dataset, batch_size=batch_size)",
                    "+loader = DataLoader(dataset, batch_size=batch_size, num_workers=4)",
                ),
            ),
            note="Data that `deepspeed.initialize(training_data=…)` is given has workers already: two "
            "per device, or `num_local_io_workers`.",
        ),
        "megatron": Change(
            "Give the loader more worker processes: `--num-workers 8` (the default is 2).",
            snippets=(shell("--num-workers 8"),),
        ),
        "bridge": Change(
            "Give the loader more worker processes: `cfg.dataset.num_workers = 8` (the default is 2).",
            snippets=(
                python(
                    "cfg.dataset.num_workers = 8  # Megatron-Bridge",
                    "recipe.data.num_workers = 8  # NeMo 2",
                ),
            ),
        ),
        "torchtitan": Change(
            "Give the loader worker processes: `config.dataloader.num_workers = 4` (the default is 0).",
            snippets=(python("config.dataloader.num_workers = 4"),),
        ),
    },
    safety="bit-identical",
    when="Cores are free. Where all are busy already, `tokenise-ahead` helps and more workers do not.",
    safe="Random augmentation draws other numbers, one seed per worker. A data set that counts or has random "
    "numbers of its own begins anew in each worker. An `IterableDataset` has to shard by `get_worker_info`, "
    "or it repeats its data, and comes in another order. `persistent_workers=True` saves the start of "
    "workers in each epoch, and shuffles otherwise from the second on: torch draws one number less.",
    costs="As many cores as workers, memory for as many copies of the data set's Python objects, and "
    "`prefetch_factor` (2) batches per worker in `/dev/shm`.",
    limits="`persistent_workers` and `prefetch_factor` raise without workers.",
    seen="`_MultiProcessingDataLoaderIter` stands where `_SingleProcessDataLoaderIter` stood, and "
    "data loading takes less than 1 % of the step.",
    recipe="idle_summary",
    edit="loader=0ms",
    helper="tune_loader",
    on="workers",
    more={
        "pytorch": "The loader has workers already, and they are too slow: raise `num_workers` while cores "
        "are free. A larger `prefetch_factor` helps against slow single samples only.",
        "hf": "The loader has workers already, and they are too slow: raise `dataloader_num_workers` "
        "while cores are free. A larger `dataloader_prefetch_factor` helps against slow single "
        "samples only.",
        "megatron": "The loader's workers are too slow: raise `--num-workers` while cores are free.",
        "bridge": "The loader's workers are too slow: raise `cfg.dataset.num_workers` while cores are free.",
        "torchtitan": "The loader has workers already, and they are too slow: raise "
        "`config.dataloader.num_workers` while cores are free.",
    },
)
