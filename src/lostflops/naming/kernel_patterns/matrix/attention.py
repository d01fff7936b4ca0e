"""Attention kernels."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

ATTENTION = (
    KernelPattern(
        "attention",
        ("flash::", "flash_fwd_", "flash_bwd_", "FlashAttn", "flash_attn"),
        "FlashAttention 2 and 3, in PyTorch as `pytorch_flash`",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, "
        "cutlass::bfloat16_t>>",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "attention",
        ("fmha", "Fmha", "FMHA"),
        "fused multi-head attention of xFormers, Composable Kernel, aiter, TensorRT-LLM",
        "aiter::fmha_fwd_hd128_bf16_rtz",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "attention",
        ("_sdpa_",),
        "cuDNN; its `f16` stands for any 16-bit type",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0",
        tensor_cores=True,
    ),
    KernelPattern(
        "attention",
        ("AttentionKernel<", "AttentionBackwardKernel<"),
        "CUTLASS and xFormers, memory-efficient attention",
        "void attention_kernel_batched_impl<AttentionKernel<cutlass::half_t, cutlass::arch::Sm80, true, 64>>",
        precision="matrix",
    ),
    KernelPattern(
        "attention",
        (
            "paged_attention",
            "unified_attention",
            "cached_kv_attention",
            "PrefillWith",
            "DecodeWith",
            "VariableLengthMergeStates",
            "merge_attn_states",
        ),
        "vLLM, aiter and FlashInfer, attention over a key-value cache",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, 1, 128, "
        "256, false>(int)",
        precision="matrix",
    ),
    KernelPattern(
        "attention",
        ("flash_mla", "mla_decode", "mla_a8w8", "mla_a16w16", "mla_prefill", "kn_mla_reduce"),
        "latent attention of FlashMLA and aiter",
        "_ZN5aiter45mla_a8w8_qh32_qseqlen4_gqaratio32_lse_cprr_psE.kd",
        precision="matrix",
    ),
    KernelPattern(
        "attention",
        (
            "attn_fwd",
            "attn_bwd",
            "sage_fwd",
            "bwd_kernel_dk_dv",
            "bwd_kernel_dkdv",
            "bwd_kernel_dq",
            "bwd_kernel_fuse",
            "bwd_preprocess",
        ),
        "attention by direction: Triton's tutorial, AMD's kernels in PyTorch, SageAttention, FlashMLA",
        "attn_fwd",
    ),
    KernelPattern(
        "attention",
        (
            "scaled_masked_softmax_warp",
            "scaled_upper_triang_masked_softmax",
            "scaled_aligned_causal_masked_softmax",
            "scaled_softmax_warp",
        ),
        "Megatron, Apex and Transformer Engine, softmax of attention scores",
        "void scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11>(int)",
        precision="element",
        tensor_cores=False,
    ),
)
