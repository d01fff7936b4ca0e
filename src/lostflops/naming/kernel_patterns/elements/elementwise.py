"""Pointwise kernels: fused ones, and loops over elements."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

FUSED_ELEMENTWISE = (
    KernelPattern(
        "elementwise",
        ("transformer_engine::",),
        "Transformer Engine, activations and casts without scales",
        "void transformer_engine::gated_act_kernel<8, true, float, transformer_engine::Empty>(int)",
        also=r"transformer_engine::(?:\w+::)*(?:unary_(?:grad_)?|d?gated_act_)kernel",
        precision="element",
    ),
    KernelPattern(
        "elementwise",
        (
            "act_and_mul",
            "silu_and_mul",
            "gelu_and_mul",
            "situ_and_mul",
            "swiglu",
            "SwiGLU",
            "swiGlu",
            "geglu",
        ),
        "gated activations of vLLM, SGLang, FlashInfer, Liger",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<"
        "c10::BFloat16>())>(int)",
        also=r"^(?!.*matmul|.*[Gg]emm|bmm_)",
        precision="element",
    ),
    KernelPattern(
        "elementwise",
        ("moe::dev::activation::",),
        "TensorRT-LLM, activation of experts",
        "void moe::dev::activation::activationDeepSeekKernel<moe::dev::activation::KernelParams>(int)",
    ),
    KernelPattern(
        "elementwise",
        (
            "rotary_embedding",
            "rotary_kernel",
            "rotary_fwd",
            "rotary_bwd",
            "Rotary",
            "fused_rope",
            "_rope_",
            "apply_rope",
            "triton_rope",
        ),
        "rotary position embedding of vLLM, FlashAttention, FlashInfer, Transformer Engine",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, "
        "c10::BFloat16*)",
        precision="element",
    ),
)


LOOPS = (
    KernelPattern(
        "elementwise",
        ("__parallel_for::", "__transform::", "triu_tril_kernel", "elementWise_fp"),
        "Thrust, PyTorch ATen and cuDNN, loops over elements",
        "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent>()",
    ),
    KernelPattern(
        "elementwise",
        ("elementwise_kernel_with_index",),
        "PyTorch ATen, arange and linspace; the type in the name is the index's",
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_"
        "out(c10::Scalar)>",
    ),
    KernelPattern(
        "elementwise",
        ("elementwise_kernel", "elementwise_grid_stride_kernel", "kernelPointwiseApply"),
        "PyTorch ATen, loops over elements; the functor is an argument",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul>>",
        precision="element",
    ),
    KernelPattern(
        "elementwise",
        ("dropout",),
        "PyTorch ATen, fused dropout",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned "
        "int, 1, 4, bool>(int)",
        precision="element",
    ),
    KernelPattern(
        "elementwise",
        ("SubTensorOpWith", "OpTensorFwdBias", "Op2dTensor", "Op4dTensor", "Op5dTensor"),
        "MIOpen, scaling, setting and casting of tensors",
        "SubTensorOpWithScalar1d",
    ),
    KernelPattern(
        "elementwise",
        (
            "scalePackedTensor_kernel",
            "op_generic_tensor_kernel",
            "op_tensor4d_kernel",
            "scal_kernel",
            "axpy_kernel",
        ),
        "cuDNN and cuBLAS, scaling and sums of tensors",
        "void cudnn::ops::scalePackedTensor_kernel<float, float>(cudnnTensor4dStruct, float*, float)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("reduce_kernel",),
        "PyTorch ATen, sums, means, extrema, norms; the functor is an argument",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<"
        "float, float>>>",
        precision="element",
    ),
    KernelPattern(
        "attention",
        ("attention", "Attention", "_attn_", "fused_attn"),
        "kernels that call themselves attention, and what Transformer Engine does around them",
        "void transformer_engine::fused_attn_rocm::remove_padding<__hip_bfloat16>(int)",
        precision="matrix",
    ),
    KernelPattern(
        "elementwise",
        ("loop_", "wrapped_"),
        "XLA, loop fusions",
        "loop_multiply_fusion_3",
        also=r"^(?:loop_\w*fusion|wrapped_(?:add|multiply|convert|exponential|tanh))",
    ),
    KernelPattern(
        "reduction", ("input_",), "XLA", "input_add_reduce_fusion_2", also=r"^input_\w*reduce\w*fusion"
    ),
    KernelPattern(
        "other",
        ("Kernel",),
        "short name of every CUTLASS 2 template, where a tool cut the arguments off",
        "Kernel2",
        also=r"^Kernel2?$",
    ),
)
