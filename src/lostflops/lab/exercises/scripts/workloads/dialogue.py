# pyright: basic
"""Several users in turn talk to one model: each turn computes the whole dialogue, or only what is new in it.

python -m lostflops.lab.exercises.scripts.workloads.dialogue --keep
"""

from __future__ import annotations

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lostflops import optimize
from lostflops.lab.exercises.scripts.workloads.said import parser, say

VOCABULARY = 512


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--keep", action="store_true", help="keys and values stay in host memory between turns")
    made.add_argument("--users", type=int, default=3)
    made.add_argument("--turns", type=int, default=4)
    made.add_argument("--prompt", type=int, default=256, help="tokens that all users begin with")
    made.add_argument("--said", type=int, default=16, help="tokens of a question")
    made.add_argument("--answer", type=int, default=8, help="tokens of an answer")
    made.add_argument("--block-tokens", type=int, default=16)
    given = made.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, max_position_embeddings=4096,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    computed = 0

    def count(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal computed
        computed += args[0].shape[1]

    model.model.embed_tokens.register_forward_pre_hook(count)
    cache = None
    if given.keep:
        cache = optimize.DialogueCache(
            "64 MiB", device=optimize.ThreadedDevice(), block_tokens=given.block_tokens
        )
    words = torch.Generator().manual_seed(1)
    system = torch.randint(1, VOCABULARY, (1, given.prompt), generator=words)
    dialogues = {f"user {n}": system for n in range(given.users)}
    how = {"max_new_tokens": given.answer, "do_sample": False, "pad_token_id": 0}
    turns = []
    for turn in range(given.turns):
        for user, before in dialogues.items():
            question = torch.randint(1, VOCABULARY, (1, given.said), generator=words)
            ids = torch.cat([before, question], 1)
            computed, began = 0, time.perf_counter()
            if cache is not None:
                ids = cache.generate(model, ids, user, **how)
            else:
                mask = torch.ones_like(ids)
                ids = model.generate(ids, attention_mask=mask, **how)  # pyright: ignore
            turns.append(
                {
                    "turn": turn, "user": user, "tokens": ids.shape[1], "computed": computed,
                    "ms": 1000 * (time.perf_counter() - began),
                }
            )  # fmt: skip
            dialogues[user] = ids
    say(
        given,
        {
            "turns": turns,
            "dialogues": {user: ids[0].tolist() for user, ids in dialogues.items()},
            "cache": None if cache is None else cache.report().to_json(),
            "torch": torch.__version__,
        },
    )


if __name__ == "__main__":
    main()
