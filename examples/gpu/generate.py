"""Answers prompts one after the other with a Llama of random weights on one GPU.

    lostflops record --steps 3-4 --step-on transformers.generation.utils:GenerationMixin.generate \
        -- python generate.py
"""

import argparse

import torch
from train_lora import VOCABULARY, llama


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--new", type=int, default=12, help="tokens of an answer")
    given = parser.parse_args()

    model = llama(given.layers).eval()
    for number in range(given.prompts):
        made = torch.Generator().manual_seed(number)
        prompt = torch.randint(VOCABULARY, (4, 256), generator=made).to("cuda")
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=given.new,
            min_new_tokens=given.new,
            do_sample=False,
            pad_token_id=0,
        )


if __name__ == "__main__":
    main()
