"""Preprocessing once, before training."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="tokenise-ahead",
    does="The data set is preprocessed once and stored, instead of in every epoch while the GPU waits.",
    changes={
        "pytorch": Change(
            "If the cores are busy: preprocess the data set once, store it, and map it into memory.",
            snippets=(
                python(
                    'torch.save([tokenise(text) for text in texts], "tokens.pt")  # once',
                    'tokens = torch.load("tokens.pt", mmap=True)  # in training',
                ),
            ),
        ),
        "hf": Change(
            "If the cores are busy: tokenise once before training, `dataset.map(…, batched=True, "
            "num_proc=8)`.",
            snippets=(
                python(
                    "dataset = dataset.map(",
                    "    tokenise, batched=True, num_proc=8",
                    ")  # before the Trainer is made",
                ),
            ),
            note="TRL tokenises by itself: there `dataset_num_proc=8`.",
        ),
        "accelerate": Change(
            "If the cores are busy: tokenise once before training, `dataset.map(…, batched=True, "
            "num_proc=8)`.",
            snippets=(
                python("dataset = dataset.map(tokenise, batched=True, num_proc=8)  # before training"),
            ),
        ),
        "megatron": Change(
            "If the cores are busy: tokenise once with `tools/preprocess_data.py`; "
            "`--dataloader-fast-cache-load` shortens the start.",
            snippets=(
                shell(
                    "# once",
                    "python tools/preprocess_data.py --input corpus.jsonl --output-prefix corpus",
                    "# in training",
                    "--data-path corpus_text_document --dataloader-fast-cache-load",
                ),
            ),
            note="`preprocess_data.py` also takes the flags of your tokenizer.",
        ),
        "bridge": Change(
            "If the cores are busy: pack and tokenise offline (`enable_offline_packing=True`).",
            snippets=(python("cfg.dataset.enable_offline_packing = True"),),
            note="Before Megatron-Bridge 0.6: `packed_sequence_specs`.",
        ),
        "torchtitan": Change(
            "If the cores are busy: preprocess the data set once, store it, and map it into memory.",
            instead="torchtitan tokenises in its loader: give it workers (`loader-workers`), or a data "
            "set class of your own that reads tokens.",
        ),
    },
    safety="bit-identical",
    when="The loader's time is spent in frames of a tokenizer or of decoding, and its workers are busy.",
    costs="Disk for the result, and one pass over the data.",
    limits="Set `TOKENIZERS_PARALLELISM` on purpose where workers are forked after the tokenizer was used.",
    seen="The frames of the tokenizer are gone from `__next__` of the loader.",
    recipe="idle_names",
    edit="loader=0ms",
)
