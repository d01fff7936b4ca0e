"""Several sequences in one row, without padding."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="packing",
    does="Short sequences share a row of the batch, so that nothing is computed on padding.",
    changes={
        "pytorch": Change(
            "Pack sequences into rows of one length, with a mask of documents (`flex_attention`).",
            snippets=(
                python(
                    "from torch.nn.attention.flex_attention import (",
                    "    create_block_mask,",
                    "    flex_attention,",
                    ")",
                    "",
                    "def same_document(batch, head, query, key):",
                    "    return (document[query] == document[key]) & (query >= key)",
                    "",
                    "mask = create_block_mask(same_document, None, None, length, length)",
                    "hidden = flex_attention(queries, keys, values, block_mask=mask)",
                ),
            ),
            note="Positions have to begin anew with each document.",
        ),
        "hf": Change(
            "Pack sequences: `DataCollatorWithFlattening` with a FlashAttention kernel (TRL: "
            "`packing=True`).",
            snippets=(
                python("collator = DataCollatorWithFlattening()"),
                python('SFTConfig(packing=True, packing_strategy="bfd")', title="or with TRL"),
            ),
            note='The strategy `"wrapped"` cuts sequences in the middle.',
        ),
        "accelerate": Change(
            "Pack sequences: `DataCollatorWithFlattening` with a FlashAttention kernel.",
            snippets=(python("collator = DataCollatorWithFlattening()"),),
        ),
        "megatron": Change(instead="Samples for pretraining are packed already."),
        "bridge": Change(
            "Pack sequences: `enable_in_batch_packing=True`, or offline with `enable_offline_packing=True`.",
            snippets=(python("cfg.dataset.enable_in_batch_packing = True"),),
            note="Before Megatron-Bridge 0.6: `pack_sequences_in_batch`.",
        ),
        "torchtitan": Change(instead="Sequences are packed by default."),
    },
    safety="changes convergence",
    when="More than a fifth of the tokens are padding.",
    safe="Batches hold other sequences. Each stays what it was only with a mask of documents and positions "
    "that begin anew.",
    costs="Preprocessing.",
    limits="Needs an attention kernel for sequences of several lengths: with plain attention they see each "
    "other. CUDA graphs of Transformer Engine refuse packed inputs.",
    seen="Fewer steps for the same tokens: compare time per token, not per step.",
    recipe="kernel_summary",
)
