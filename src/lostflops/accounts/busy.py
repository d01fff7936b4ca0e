"""Something runs on the GPU."""

from lostflops.accounts.account import Account

BUSY = (
    Account(
        "compute",
        label="compute",
        verdict="Compute-bound",
        meaning="At least one kernel runs that is not communication.",
        found="The union of such kernels' intervals, so overlapping work counts once. On a CPU-only trace "
        "operators are counted instead of kernels.",
        remedy="`lostflops recipe kernel-families` lists the kinds of kernels, `lostflops recipe "
        "precision-mix` "
        "whether they use tensor cores.",
        remedies=("fp8", "compile", "attention-kernel", "selective-checkpointing", "batch-size"),
        makes_late="its longer compute makes",
    ),
    Account(
        "communication.wait",
        label="waiting for other ranks",
        noun="waiting for late ranks",
        said_by_group="Only communication runs, and ",
        meaning="Only communication runs, and another rank of the collective has not arrived yet.",
        found="Each collective is matched across ranks; the last arrival splits it into wait and transfer. "
        "That needs the traces of all its ranks.",
        remedy="A faster network does not help. `lostflops recipe communication-imbalance` names the rank "
        "that "
        "arrives last: give it less work, or find what slows it.",
        verdict="Waiting for late ranks",
    ),
    Account(
        "communication.transfer",
        label="transfer",
        noun="exposed communication",
        said_by_group="Only communication runs, and ",
        meaning="Only communication runs, and all ranks of the collective have arrived.",
        found="The rest of a matched collective after the last rank has arrived.",
        remedy="Start it earlier, so that compute hides it, or send less: accumulate gradients without "
        "synchronising, reduce in bf16, shard within a node. Size buckets by what is exposed: large ones "
        "in the middle, a small last one. `lostflops recipe communication-summary` compares the "
        "bandwidths.",
    ),
    Account(
        "communication.exposed",
        label="waiting or transfer",
        noun="exposed communication",
        said_by_group="Only communication runs; ",
        meaning="Only communication runs; whether it waits or transfers is not known.",
        found="Communication that could not be matched across ranks; `lostflops recipe communication-wait` "
        "gives the reason, often missing ranks.",
        remedy="Record the same steps on all ranks of the job.",
    ),
    Account(
        "copy",
        label="exposed copies",
        noun="exposed copies",
        meaning="Only copies, memsets or managed-memory migrations run.",
        found="The union of copies, minus what kernels or communication cover.",
        remedy="Pin the host memory and copy with `non_blocking=True` one batch ahead, or keep the data on "
        "the "
        "GPU; `lostflops recipe copy-summary-by-time` lists the copies.",
        verdict="Copy-bound",
        makes_late="its copies make",
        spent="of copies",
    ),
)
