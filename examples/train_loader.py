"""Training that waits for its data: each text is fetched as from a store on the network, one after the other.

With `--workers 0` that happens between two steps; worker processes do it beside them. Nothing here records:

    lostflops record -- python examples/train_loader.py
    lostflops prove --before 'python examples/train_loader.py' \\
        --after 'python examples/train_loader.py --workers 4'
"""

import argparse
import random
import time

import torch
from model import Transformer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import lostflops

BATCH = 8
LENGTH = 64  # tokens of a text
VOCABULARY = 2048
FETCH = 0.005  # seconds


class Fetched(Dataset[Tensor]):
    """Made-up texts that take a while to come."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts

    def __len__(self) -> int:
        return self.num_texts

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(FETCH)
        start = random.Random(index).randrange(VOCABULARY)
        return torch.arange(start, start + LENGTH) % VOCABULARY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(VOCABULARY, depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Fetched(BATCH * arguments.steps), batch_size=BATCH, num_workers=arguments.workers)

    for tokens in loader:
        loss = model(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lostflops.log(loss=loss, tokens=tokens.numel())


if __name__ == "__main__":
    main()
