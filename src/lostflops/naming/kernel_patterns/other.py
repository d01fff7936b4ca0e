"""Kernels of work that has no family of its own."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

OTHER = (
    KernelPattern(
        "other",
        (
            "delta_rule",
            "selective_scan",
            "chunk_scan",
            "chunk_state",
            "state_passing",
            "recompute_w_u",
            "fused_recurrent",
        ),
        "recurrent layers: Mamba, flash-linear-attention",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    ),
    KernelPattern(
        "other",
        ("RNN_blockPersist", "persistRNN", "row_id_map"),
        "cuDNN, recurrent networks; Megatron and Transformer Engine, maps of routed tokens",
        "_row_id_map_pass_1_kernel",
    ),
    KernelPattern(
        "other",
        (
            "RadixSort",
            "radixSort",
            "radix_sort",
            "bitonicSort",
            "sort_kernel",
            "DeviceMergeSort",
            "DeviceSelect",
            "DeviceCompactInit",
            "DeviceReduceByKey",
            "DeviceRunLengthEncode",
            "DevicePartition",
            "DeviceHistogram",
            "wrapped_partition_config",
        ),
        "CUB, rocPRIM and PyTorch ATen, sorting and selecting",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, "
        "int>::Policy800, false, long>(int*)",
    ),
    KernelPattern(
        "other",
        ("gatherTopK", "topk", "TopK", "topK"),
        "PyTorch ATen, Triton kernels and vLLM, the largest few",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo)",
    ),
    KernelPattern(
        "other",
        (
            "moe_align_block_size",
            "count_and_sort_expert",
            "clean_and_count_expert",
            "moe::dev::routing::",
            "routing_compute",
            "routing_memset",
            "sum_bitmatrix_rows",
            "get_fused_mapping",
            "unique_group_indices",
            "aux_fi_impl",
        ),
        "routing of tokens to experts: vLLM, TensorRT-LLM, Triton kernels, DeepSeek",
        "void cuda::get_fused_mapping<512>(long const*, int*, int*, int*, int*, int*, int*, int const*, int)",
    ),
    KernelPattern(
        "other",
        (
            "sampling::",
            "sample_kernel",
            "Multinomial",
            "multinomial",
            "_temperature_kernel",
            "_penalties_kernel",
        ),
        "FlashInfer, vLLM and PyTorch ATen, choice of the next token",
        "void flashinfer::sampling::TopPSamplingFromProbKernel<1024, (cub::BlockScanAlgorithm)2>(float*)",
    ),
    KernelPattern(
        "other",
        (
            "create_flashinfer_kv_indices",
            "kv_indices_generate",
            "compute_position_kernel",
            "clamp_position_kernel",
            "resolve_future_token_ids",
            "req_to_token_pool",
            "compute_slot_mapping",
        ),
        "SGLang and vLLM, bookkeeping of positions and pages",
        "create_flashinfer_kv_indices_triton",
    ),
    KernelPattern(
        "other",
        ("max_pool", "avg_pool", "MaxPool", "AvgPool", "average_pool", "pooling_", "mloPooling"),
        "PyTorch ATen, cuDNN and MIOpen, pooling",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)",
    ),
    KernelPattern(
        "other",
        ("upsample_", "grid_sampler"),
        "PyTorch ATen, resizing",
        "void at::native::(anonymous namespace)::upsample_nearest2d_out_frame<"
        "c10::BFloat16>(c10::BFloat16 const*)",
    ),
    KernelPattern(
        "other",
        ("bucketize_sparse_features", "offsets_range_cuda"),
        "FBGEMM, sparse features",
        "void fbgemm_gpu::_offsets_range_cuda_kernel<int>(long, long, int const*, int*)",
    ),
    KernelPattern(
        "other",
        ("vector_fft", "regular_fft", "multi_bluestein_fft", "composite_fft"),
        "cuFFT",
        "void regular_fft<256u, EPT<16u>, 16u, 4u, (padding_t)1, (twiddle_t)0, (loadstore_modifier_t)2>(int)",
    ),
    KernelPattern(
        "other",
        ("cuda::(anonymous namespace)::spin_kernel", "cuda::spin_kernel"),
        "PyTorch ATen, torch.cuda._sleep",
        "at::cuda::(anonymous namespace)::spin_kernel(long)",
    ),
)
