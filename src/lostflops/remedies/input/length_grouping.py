"""Batches of like lengths for the ranks of a step."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="length-grouping",
    does="The ranks get batches of like sequence lengths in each step, so that none waits for another.",
    changes={
        "pytorch": Change(
            "Give the ranks like amounts of work: batches of like sequence lengths (a bucketing "
            "sampler), or packing with `torch.nn.attention.varlen`.",
            snippets=(
                python(
                    "order = sorted(range(len(dataset)), key=lambda i: len(dataset[i]))",
                    "batches = [order[i : i + 8] for i in range(0, len(order), 8)]",
                    "steps = [",
                    "    batches[i : i + world_size] for i in range(0, len(batches), world_size)",
                    "]",
                    "random.Random(epoch).shuffle(steps)  # the same order on every rank",
                    "mine = [step[rank] for step in steps if len(step) == world_size]",
                    "loader = DataLoader(dataset, batch_sampler=mine)",
                ),
            ),
        ),
        "hf": Change(
            "Give the ranks like amounts of work: <group by length>, or packing (TRL: `packing=True`).",
            snippets=(
                python(
                    'TrainingArguments(train_sampling_strategy="group_by_length")',
                    since="transformers 5.10",
                ),
                python("TrainingArguments(group_by_length=True)", until="transformers 5.10"),
            ),
        ),
        "bridge": Change(
            "Give the ranks like amounts of work: `enable_in_batch_packing=True`, or stages and "
            "experts of one cost.",
            snippets=(python("cfg.dataset.enable_in_batch_packing = True"),),
            note="Before Megatron-Bridge 0.6: `pack_sequences_in_batch`.",
        ),
        "megatron": Change(
            "Give the ranks like amounts of work: for experts `--moe-router-load-balancing-type "
            "aux_loss`, for stages `--pipeline-model-parallel-layout`.",
            snippets=(
                shell(
                    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01  # experts",
                    "--pipeline-model-parallel-layout LAYOUT  # stages",
                ),
            ),
            note="Samples for pretraining are of one length already.",
        ),
        "torchtitan": Change(
            "Give the ranks like amounts of work: sequences are packed by default, so look at "
            "experts and stages (`pipeline_parallel_first_stage_less_layers`).",
            snippets=(
                python(
                    "config.parallelism.pipeline_parallel_first_stage_less_layers = 1",
                    "config.parallelism.pipeline_parallel_last_stage_less_layers = 1",
                ),
            ),
        ),
    },
    safety="changes convergence",
    when="Sequences differ in length, and the late rank changes with its batch.",
    safe="Samples come in another order.",
    limits="An `IterableDataset` has no lengths to sort by. Packing also evens out the work, where the "
    "attention kernel takes sequences of several lengths.",
    seen="The ranks' lateness and the spread of step times fall.",
    recipe="communication_imbalance",
    edit="even-work",
)
