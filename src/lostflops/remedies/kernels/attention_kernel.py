"""A fused attention kernel."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="attention-kernel",
    does="One kernel computes attention without writing its matrix of scores to memory.",
    changes={
        "pytorch": Change(
            "Use a fused attention kernel: `scaled_dot_product_attention` under `sdpa_kernel`.",
            snippets=(
                python(
                    "from torch.nn.attention import SDPBackend, sdpa_kernel",
                    "",
                    "backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]",
                    "with sdpa_kernel(backends, set_priority=True):",
                    "    hidden = torch.nn.functional.scaled_dot_product_attention(",
                    "        q, k, v, is_causal=True",
                    "    )",
                ),
            ),
        ),
        "hf": Change(
            'Use a fused attention kernel: `attn_implementation="flash_attention_2"`.',
            snippets=(
                python(
                    "model = AutoModelForCausalLM.from_pretrained(",
                    '    name, attn_implementation="flash_attention_2"',
                    ")",
                ),
            ),
            note='The default `"sdpa"` falls back to the eager form without a word where a model lacks it.',
        ),
        "accelerate": Change(
            'Use a fused attention kernel: `attn_implementation="flash_attention_2"`.',
            snippets=(
                python(
                    "model = AutoModelForCausalLM.from_pretrained(",
                    '    name, attn_implementation="flash_attention_2"',
                    ")",
                ),
            ),
        ),
        "megatron": Change(
            "Use a fused attention kernel: `--attention-backend flash`.",
            snippets=(shell("--attention-backend flash"),),
            note="`--use-flash-attn` is the old name.",
        ),
        "bridge": Change(
            "Use a fused attention kernel: `attention_backend = AttnBackend.flash`.",
            snippets=(python("cfg.model.attention_backend = AttnBackend.flash"),),
        ),
        "torchtitan": Change(
            'Use a fused attention kernel: `attn_backend="flex"` in the model\'s registry.',
            snippets=(python('model_spec = model_registry("8B", attn_backend="flex")'),),
        ),
    },
    safety="numerically close",
    when="Attention takes a tenth of the compute or more, in kernels of softmax and batched products.",
    safe="The same mathematics, summed in another order.",
    limits="Not for arbitrary masks, dropout and some head sizes; FlashAttention 2 takes 16-bit inputs only.",
    seen="Attention runs in kernels called `flash_fwd`, `fmha` or `cudnn…sdpa` instead of products "
    "and softmaxes.",
    recipe="kernel_summary",
    edit="faster:attention=2",
)
