"""Kernels that copy, fill, transpose or gather."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

# These copies bear words of other families in their names.
COPIES_FIRST = (
    KernelPattern(
        "copy",
        (
            "reshape_and_cache",
            "concat_and_cache",
            "store_kvcache",
            "store_kv_cache",
            "gather_and_maybe_dequant",
        ),
        "vLLM and SGLang, writes to and reads from the key-value cache",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>(__hip_bfloat16 const*)",
    ),
    KernelPattern(
        "copy",
        ("nchwToNhwc", "nhwcToNchw", "NchwToNhwc", "NhwcToNchw", "CNHW2NCHW", "NCHW2CNHW"),
        "cuDNN and MIOpen, changes of layout",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(cudnn::ops::nchw2nhwc_params_t)",
    ),
    KernelPattern(
        "copy",
        ("multi_tensor_apply_kernel",),
        "PyTorch ATen, _foreach_copy_",
        "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, "
        "at::native::CopyFunctor<int>>",
        also=r"CopyFunctor|native::Copy<",
    ),
)


COPY = (
    KernelPattern(
        "copy",
        ("_copy_kernel", "copy_device_to_device", "copy_kernel_cuda"),
        "PyTorch ATen, copy_ and casts",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_"
        "cuda(at::TensorIteratorBase&)>",
    ),
    KernelPattern(
        "copy",
        ("CatArrayBatchedCopy", "CatArrInput", "split_with_sizes_copy", "chunk_cat", "HIP_CatArray"),
        "PyTorch ATen, concatenation and its reverse",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)",
    ),
    KernelPattern(
        "copy",
        ("FillFunctor", "fillBuffer", "memset32", "memset_kernel", "zero_kernel"),
        "memory set by a kernel: PyTorch ATen, ROCclr",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul>>",
    ),
    KernelPattern(
        "copy",
        ("copyBuffer", "copy_buffer", "_copy_tensor_kernel", "memcpy_kernel"),
        "memory copied by a kernel: ROCclr, SGLang",
        "__amd_rocclr_copyBuffer.kd",
    ),
    KernelPattern(
        "copy",
        (
            "index_elementwise_kernel",
            "scatter_gather_elementwise",
            "vectorized_gather_kernel",
            "indexSelect",
            "indexCopy",
            "index_copy",
            "index_put_kernel",
            "masked_scatter",
            "compute_cuda_kernel",
            "roll_cuda_kernel",
            "flip_kernel_impl",
            "reflection_pad",
            "replication_pad",
        ),
        "PyTorch ATen, elements moved by index: index, gather, scatter, repeat_interleave, roll, pad",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned "
        "int, 2, 2>(int)",
    ),
    KernelPattern(
        "copy",
        (
            "batched_transpose",
            "transpose_readWrite",
            "transpose_kernel",
            "transpose_optimized_kernel",
            "transpose_general_kernel",
            "tensorTransform",
            "permute_kernel",
        ),
        "transposes: MIOpen, cuBLAS, cuDNN, Transformer Engine, DeepSeek",
        "batched_transpose_32x32_half",
    ),
    KernelPattern(
        "copy",
        (
            "permute_2D_",
            "permute_1D_",
            "permute_indices_weights",
            "expand_to_fused",
            "expand_into_jagged",
            "_sort_chunks_by_map",
        ),
        "tokens and sparse features put in another order: FBGEMM, DeepSeek, Transformer Engine",
        "void fbgemm_gpu::permute_2D_data_kernel<true, int, int, float>(int, int, int, int const*)",
    ),
)
