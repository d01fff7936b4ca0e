"""Made-up texts and a byte-pair tokeniser in plain Python, as in many a first training script."""

import random
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.data import Dataset

SENTENCE = "the model reads a long text and learns to guess which word comes next from all words before it"
WORDS = SENTENCE.split()


class Texts(Dataset[Tensor]):
    """Texts of `words` words, turned into tokens when they are asked for: each in full, though only the first
    `length` tokens are kept."""

    def __init__(self, num_texts: int, words: int, length: int, vocabulary: int) -> None:
        self.num_texts, self.words, self.length, self.vocabulary = num_texts, words, length, vocabulary
        pairs = sorted({pair for word in WORDS for pair in pairwise(word)})
        self.rank_of = {pair: rank for rank, pair in enumerate(pairs)}

    def __len__(self) -> int:
        return self.num_texts

    def __getitem__(self, index: int) -> Tensor:
        words = random.Random(index).choices(WORDS, k=self.words)
        pieces = [piece for word in words for piece in self.merged(word)]
        return torch.tensor([sum(map(ord, piece)) % self.vocabulary for piece in pieces[: self.length]])

    def merged(self, word: str) -> list[str]:
        """The word's letters, the best-ranked pair of neighbours merged until two pieces are left."""
        pieces = list(word)
        while len(pieces) > 2:
            ranks = [self.rank_of[left[-1], right[0]] for left, right in pairwise(pieces)]
            at = ranks.index(min(ranks))
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces
