# pyright: basic
"""Inference with weights that are not all on the device: budget after budget, what has to travel per pass.

python -m lostflops.lab.exercises.scripts.workloads.streaming --budgets 0.3,0.6,1
"""

from __future__ import annotations

import time

import torch

from lostflops import optimize
from lostflops.lab.exercises.scripts.model import MODELS, Transformer
from lostflops.lab.exercises.scripts.workloads.said import parser, say


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--budgets", default="0,0.5,1", help="shares of the weights; 0 is the least that works")
    made.add_argument("--passes", type=int, default=6)
    made.add_argument("--tokens", type=int, default=32)
    given = made.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(MODELS["mistral-tiny"]).eval()
    weights = sum(p.nbytes for p in model.parameters())
    batches = [torch.randint(512, (1, given.tokens)) for _ in range(given.passes)]
    rows = []
    with torch.no_grad():
        alone = [model(batch) for batch in batches]
        for share in map(float, given.budgets.split(",")):
            budget = int(share * weights) or None
            with optimize.stream_weights(model, budget, device=optimize.ThreadedDevice()) as streamed:
                began = time.perf_counter()
                same = all(torch.equal(model(batch), one) for batch, one in zip(batches, alone, strict=True))
                took = time.perf_counter() - began
                report = streamed.report().to_json()
            rows.append({"share": share, "same": same, "ms": 1000 * took / given.passes, "report": report})
    say(given, {"weights": weights, "passes": given.passes, "budgets": rows, "torch": torch.__version__})


if __name__ == "__main__":
    main()
