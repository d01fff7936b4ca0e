"""LoRA fine-tuning whose data loader tokenises on the fly: with `--workers 0` the model waits for it.

The byte-pair tokeniser is written in plain Python, as in many a first training script. Without workers it
runs between two steps, on the thread that feeds the model; with workers it runs beside it.

    python examples/train_lora.py --workers 0 --output examples/runs/lora-workers-0
"""

import argparse
from pathlib import Path

import torch
from model import Transformer, add_lora
from recording import NUM_STEPS, recording
from texts import Texts
from torch.utils.data import DataLoader

WORDS_PER_TEXT = 1000
LENGTH = 64  # tokens of a text that are kept
VOCABULARY = 2048


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
    loader = DataLoader(
        Texts(8 * NUM_STEPS, WORDS_PER_TEXT, LENGTH, VOCABULARY), batch_size=8, num_workers=arguments.workers
    )

    with recording(arguments.output) as profiler:
        for tokens in loader:
            optimizer.zero_grad()
            model(tokens.to(device)).backward()
            optimizer.step()
            profiler.step()


if __name__ == "__main__":
    main()
