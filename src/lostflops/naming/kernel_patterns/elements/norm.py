"""Normalisations."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

NORM = (
    KernelPattern(
        "norm",
        (
            "layer_norm",
            "LayerNorm",
            "layernorm",
            "layerNorm",
            "ln_fwd",
            "ln_bwd",
            "rms_norm",
            "rmsnorm",
            "RMSNorm",
            "RmsNorm",
            "Rmsnorm",
            "RMSnorm",
            "rms_layernorm",
            "batch_norm",
            "BatchNorm",
            "batchnorm",
            "group_norm",
            "GroupNorm",
            "groupnorm",
            "instance_norm",
            "InstanceNorm",
            "l2norm",
            "weight_norm",
            "qk_norm",
        ),
        "kernels that call themselves a norm: PyTorch, Apex, Transformer Engine, vLLM, FlashInfer, MIOpen",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, "
        "false>(int)",
        precision="element",
    ),
    KernelPattern(
        "norm",
        ("transformer_engine::normalization::",),
        "Transformer Engine",
        "void transformer_engine::normalization::finalize_tuned_kernel<__nv_bfloat16, float>(int)",
        precision="element",
    ),
    KernelPattern(
        "norm",
        ("cudnn::bn_",),
        "cuDNN, batch norm",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float)",
        precision="element",
    ),
    KernelPattern(
        "norm",
        (
            "RowwiseMomentsCUDAKernel",
            "GammaBetaBackward",
            "GradGammaBeta",
            "cuComputeGradInput",
            "ComputeFusedParamsCUDAKernel",
            "ComputeBackwardFusedParamsCUDAKernel",
            "ComputeInternalGradientsCUDAKernel",
        ),
        "PyTorch ATen and Apex, parts of layer and group norm",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float>(long, float, "
        "float const*)",
        precision="element",
    ),
)
