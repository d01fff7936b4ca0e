"""Reductions, sorts and scans."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

REDUCTION = (
    KernelPattern(
        "other",
        ("topk_softmax", "topkGating", "topk_gating", "topk_sigmoid", "grouped_topk", "biased_grouped"),
        "vLLM, SGLang and TensorRT-LLM, choice of experts",
        "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16, (vllm::moe::ScoringFunc)0>(int)",
    ),
    KernelPattern(
        "reduction",
        ("softmax", "SoftMax", "Softmax", "softMax"),
        "kernels that call themselves a softmax",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("cross_entropy", "ctc_loss"),
        "losses of Liger, Unsloth, FlashAttention, Megatron, PyTorch ATen",
        "liger_cross_entropy_kernel",
    ),
    KernelPattern(
        "elementwise",
        ("nll_loss_backward", "ClassNLLCriterion_updateGradInput"),
        "PyTorch ATen, backward of the likelihood loss: one value written per row",
        "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, "
        "long>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("nll_loss_forward", "ClassNLLCriterion_updateOutput"),
        "PyTorch ATen, likelihood loss",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, "
        "float, long>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        (
            "finalizeMoeRouting",
            "moe::dev::finalize::",
            "finalize_matmul_scatter",
            "moe_sum",
            "reduce_fused_impl",
        ),
        "weighted sum of the experts' outputs: TensorRT-LLM, Triton kernels, vLLM, DeepSeek",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<"
        "cutlass::bfloat16_t>>",
    ),
    KernelPattern(
        "reduction",
        (
            "ReduceAdd>",
            "ReduceMinimum>",
            "ReduceMaximum>",
            "ReduceMean>",
            "indexing_backward_kernel",
            "indexFuncSmallIndex",
            "indexFuncLargeIndex",
        ),
        "PyTorch ATen, rows of equal index added up: scatter_add, index_add, backward of indexing",
        "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long*, long*, float*, float*, long)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("DeviceScan", "tensor_kernel_scan", "scan_by_key", "wrapped_scan_config", "cumsum", "cumprod"),
        "prefix sums: CUB, rocPRIM, PyTorch ATen",
        "void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, int>, int*, int*, cub::Sum>(int*, int*)",
    ),
    KernelPattern(
        "reduction",
        (
            "DeviceReduceKernel",
            "DeviceReduceSingleTile",
            "DeviceSegmentedReduce",
            "wrapped_reduce_config",
            "__reduce::",
        ),
        "CUB, rocPRIM and Thrust",
        "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<float>, float*, float*, int>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("dot_kernel", "nrm2_kernel", "asum_kernel", "reduce_1Block_kernel", "iamax_kernel"),
        "cuBLAS and rocBLAS, scalar product and norms of vectors",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>>>(int)",
        precision="matrix",
    ),
)
