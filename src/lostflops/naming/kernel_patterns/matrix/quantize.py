"""Kernels that quantise or dequantise."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

QUANTIZE = (
    KernelPattern(
        "quantize",
        ("quantize", "Quantize", "_quant_kernel", "_quant_8bit", "_quant_", "dequant", "Dequant"),
        "kernels that call themselves a quantization: vLLM, SGLang, bitsandbytes, SageAttention, FlashInfer",
        "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(float*)",
        also=r"^(?!.*(?<!fb)gemm|.*Gemm|.*GEMM|.*matmul)",
    ),
    KernelPattern(
        "quantize",
        (
            "_cast_to_fp8",
            "per_channel_cast",
            "per_token_cast",
            "cast_back_impl",
            "cast_transpose",
            "cast_fp8",
            "cast_mxfp8",
        ),
        "casts with scales to and from 8 bits: DeepSeek, Transformer Engine",
        "void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128, false, 128, false>(__nv_"
        "bfloat16 const*)",
    ),
    KernelPattern(
        "quantize",
        ("FP8rowwise", "_FP8_qparam", "_to_hfp8", "_hfp8_to_"),
        "FBGEMM",
        "void fbgemm_gpu::(anonymous namespace)::_FP8rowwise_to_float_cuda_kernel<float>(unsigned "
        "char const*)",
    ),
)
