"""Records every run under examples/runs again: `make record-examples`."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUNS = {
    "ddp": ["-m", "torch.distributed.run", "--nproc-per-node", "4", "train_ddp.py"],
    "fsdp2": ["-m", "torch.distributed.run", "--nproc-per-node", "4", "train_fsdp2.py"],
    "lora-workers-0": ["train_lora.py", "--workers", "0"],
    "lora-workers-4": ["train_lora.py", "--workers", "4"],
}

for name, command in RUNS.items():
    print(f"recording {name}", flush=True)
    subprocess.run([sys.executable, *command, "--output", f"runs/{name}"], cwd=HERE, check=True)
