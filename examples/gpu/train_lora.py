"""LoRA fine-tuning of a Llama with the layers of a 7B model, random weights, on one GPU.

The loader tokenises long documents in plain Python and keeps their beginning: with `--workers 0` the GPU
waits for it, with `--workers 4` it does not.

    lostflops record --steps 4-6 --what cuda,shapes,python --monitor -- python train_lora.py --workers 0
"""

import argparse
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).parents[1]))
from texts import Texts

WORDS_PER_TEXT = 20_000
VOCABULARY = 32_000


def llama(layers: int) -> LlamaForCausalLM:
    """A random Llama in bf16 on the GPU, as wide as one of 7B parameters, which has 32 layers."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        config = LlamaConfig(
            hidden_size=4096,
            intermediate_size=11_008,
            num_hidden_layers=layers,
            num_attention_heads=32,
            vocab_size=VOCABULARY,
        )
        return LlamaForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()

    targets = ["q_proj", "v_proj"]
    model = get_peft_model(llama(given.layers), LoraConfig(r=16, target_modules=targets))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    texts = Texts(given.batch * given.steps, WORDS_PER_TEXT, given.tokens, VOCABULARY)
    loader = DataLoader(texts, batch_size=given.batch, num_workers=given.workers, pin_memory=True)
    for tokens in loader:
        tokens = tokens.to("cuda", non_blocking=True)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
