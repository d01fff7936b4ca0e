"""LoRA fine-tuning whose data loader tokenises on the fly: with `--workers 0` the model waits for it.

The byte-pair tokeniser is written in plain Python, as in many a first training script. Without workers it
runs between two steps, on the thread that feeds the model; with workers it runs beside it.

    python examples/train_lora.py --workers 0 --output examples/runs/lora-workers-0
"""

import argparse
import random
from itertools import pairwise
from pathlib import Path

import torch
from model import Transformer, add_lora
from recording import NUM_STEPS, recording
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SENTENCE = "the model reads a long text and learns to guess which word comes next from all words before it"
WORDS = SENTENCE.split()
WORDS_PER_TEXT = 1000
LENGTH = 64  # tokens of a text that are kept
VOCABULARY = 2048


class Texts(Dataset[Tensor]):
    """Made-up texts, turned into tokens when they are asked for: each in full, though most is thrown away."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts
        pairs = sorted({pair for word in WORDS for pair in pairwise(word)})
        self.rank_of = {pair: rank for rank, pair in enumerate(pairs)}

    def __len__(self) -> int:
        return self.num_texts

    def __getitem__(self, index: int) -> Tensor:
        words = random.Random(index).choices(WORDS, k=WORDS_PER_TEXT)
        pieces = [piece for word in words for piece in self.merged(word)]
        return torch.tensor([sum(map(ord, piece)) % VOCABULARY for piece in pieces[:LENGTH]])

    def merged(self, word: str) -> list[str]:
        """The word's letters, the best-ranked pair of neighbours merged until two pieces are left."""
        pieces = list(word)
        while len(pieces) > 2:
            ranks = [self.rank_of[left[-1], right[0]] for left, right in pairwise(pieces)]
            at = ranks.index(min(ranks))
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(VOCABULARY, depth=3)
    trained = add_lora(model)
    model.to(device)
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    loader = DataLoader(Texts(8 * NUM_STEPS), batch_size=8, num_workers=arguments.workers)

    with recording(arguments.output) as profiler:
        for tokens in loader:
            optimizer.zero_grad()
            model(tokens.to(device)).backward()
            optimizer.step()
            profiler.step()


if __name__ == "__main__":
    main()
