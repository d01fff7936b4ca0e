"""Matrix products."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

GEMM = (
    KernelPattern(
        "gemm",
        ("Cijk_A",),
        "Tensile: hipBLASLt and rocBLAS",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x16x128_MI16x16x1_SN_LDSB1_AFC1",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("nvjet_",),
        "cuBLASLt since Hopper; the letters are the types",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "gemm",
        ("xmma_gemm_",),
        "cuBLAS since Ampere",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_"
        "segment_k_off_"
        "kernel__5x_cublas",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("gemv", "gemSN", "gemmSN_", "gemmk1_", "splitKreduce_kernel", "epilogue::impl::globalKernel"),
        "cuBLAS, products with vectors, and what follows a split product",
        "void gemmk1_kernel<int, float, 256, 5, false, cublasGemvTensorStridedBatched<float const>>(int)",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("deep_gemm::",),
        "DeepGEMM",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u, 1u, 128u, 128u>(float*)",
        also=r"deep_gemm::\w*(?:gemm|logits|einsum)",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "copy",
        ("grouped_gemm::cuda::utils::transpose", "deep_gemm::transpose"),
        "DeepSeek, layouts of scales and operands",
        "void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*, "
        "unsigned char*)",
    ),
    KernelPattern(
        "gemm",
        ("grouped_gemm::",),
        "DeepSeek, grouped products of experts and their descriptors",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(Params)",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        (
            "matmul_ogs",
            "fused_moe_kernel",
            "fmoe_",
            "moe_gemm",
            "mfma_moe",
            "moe_stage1",
            "moe_stage2",
            "MoeFlatmm",
        ),
        "products of experts: Triton kernels, vLLM, aiter",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("bmm_",),
        "TensorRT-LLM, batched products with block scales",
        "bmm_Bfloat16_E4m3E4m3_Fp32_t128x64x128u2_s6_et64x64_m64x64x32",
        also=r"^bmm_",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "gemm",
        ("Marlin<", "marlin_", "machete", "awq_gemm", "gemm_half_q_half", "kgemm_4bit", "wvSplitK", "LLGemm"),
        "products with quantized weights: Marlin, AWQ, GPTQ, bitsandbytes, vLLM on AMD",
        "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 256, 1, 8>(int4 const*)",
    ),
    KernelPattern(
        "gemm",
        ("_scaled_mm", "mm_kernel", "matmul", "Matmul", "MatMul", "matMul"),
        "kernels that call themselves a matrix product: Triton, cuDNN, XLA",
        "_w8a8_triton_block_scaled_mm",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("gemm", "Gemm", "GEMM"),
        "BLAS names: cuBLAS by chip and type, CUTLASS, MAGMA, Composable Kernel; `fbgemm` is a library",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)",
        also=r"(?<!fb)gemm|Gemm|GEMM",
        precision="matrix",
    ),
)
