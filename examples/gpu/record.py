"""Records every job of this folder on this machine's GPU, scrubbed: `python examples/gpu/record.py RUNS`.

Needs torch with CUDA, transformers, peft and lostflops. Takes some minutes and a GPU of 24 GB.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
GENERATE = "transformers.generation.utils:GenerationMixin.generate"
LORA = ["--steps", "4-6", "--what", "cuda,shapes,python", "--monitor"]
RUNS = {
    "lora-workers-0": (LORA, ["train_lora.py", "--workers", "0", "--layers", "8"]),
    "lora-workers-4": (LORA, ["train_lora.py", "--workers", "4", "--layers", "8"]),
    "ddp": (
        ["--steps", "8-10", "--monitor"],
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py", "--how", "ddp"],
    ),
    "graph": (["--steps", "8-10"], ["train.py", "--how", "graph"]),
    "compiled": (["--steps", "8-10"], ["train.py", "--how", "compiled"]),
    "generate": (["--steps", "3-4", "--step-on", GENERATE], ["generate.py"]),
}


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    lostflops = [sys.executable, "-m", "lostflops"]
    for name, (options, job) in RUNS.items():
        print(f"recording {name}", flush=True)
        made = folder / f".{name}"
        record = [*lostflops, "record", *options, "--output", str(made), "--", sys.executable, *job]
        subprocess.run(record, cwd=HERE, check=True)
        subprocess.run([*lostflops, "scrub", str(made), str(folder / name)], check=True)


if __name__ == "__main__":
    main()
