"""What the kernels of a transformer are called on an H100, as PyTorch's profiler shows them."""

from __future__ import annotations

GEMMS = (
    "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT",
    "nvjet_tst_192x192_64x3_1x2_h_bz_coopB_TNN",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
)
GROUPED = "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> > > > >"  # noqa: E501
BF16 = "c10::BFloat16"
_POINTWISE = "void at::native::vectorized_elementwise_kernel<8, {0}, std::array<char*, {1}ul> >(int, {0}, std::array<char*, {1}ul>)"  # noqa: E501
NORM = f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{BF16}, float, true>(int, float, {BF16} const*, {BF16} const*, {BF16} const*, float*, float*, {BF16}*)"  # noqa: E501
NORM_BACKWARD = f"void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{BF16}, float, true>({BF16} const*, {BF16} const*, float const*, float const*, {BF16} const*, {BF16}*, int)"  # noqa: E501
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, false, true, false, false>(pytorch_flash::Flash_fwd_params)"  # noqa: E501
FLASH_BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, true, false, cutlass::bfloat16_t>, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)"  # noqa: E501
ADD = _POINTWISE.format(f"at::native::CUDAFunctor_add<{BF16}>", 3)
SILU = _POINTWISE.format(
    "at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}", 2
)
SILU_BACKWARD = _POINTWISE.format(
    "at::native::(anonymous namespace)::silu_backward_kernel(at::TensorIteratorBase&)::{lambda()#1}", 3
)
TOP_K = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float const, unsigned int>, unsigned int, unsigned int, bool, unsigned int, unsigned int, at::cuda::detail::TensorInfo<float, unsigned int>, unsigned int, at::cuda::detail::TensorInfo<long, unsigned int>, unsigned int, float*)"  # noqa: E501
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"  # noqa: E501
LOSS = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)"  # noqa: E501
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false> >(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"  # noqa: E501
COLLECTIVES = {
    "all-reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all-gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce-scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all-to-all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "receive": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
# What PyTorch calls them: the operator, the collective in its metadata, and the range around the launch.
CALLED = {
    "all-reduce": ("c10d::allreduce_", "allreduce", "nccl:all_reduce"),
    "all-gather": ("c10d::_allgather_base_", "_allgather_base", "nccl:_all_gather_base"),
    "reduce-scatter": ("c10d::_reduce_scatter_base_", "_reduce_scatter_base", "nccl:_reduce_scatter_base"),
    "all-to-all": ("c10d::alltoall_base_", "all_to_allv", "nccl:all_to_all"),
    "send": ("c10d::send", "send", "nccl:send"),
    "receive": ("c10d::recv_", "recv", "nccl:recv"),
}
