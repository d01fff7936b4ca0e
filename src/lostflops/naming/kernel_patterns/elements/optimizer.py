"""Kernels of optimizers."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

OPTIMIZER = (
    KernelPattern(
        "reduction",
        ("LpNormFunctor", "L2NormFunctor", "LpMaxFunctor", "MaxNormFunctor", "lpnorm_cleanup"),
        "PyTorch ATen and Apex, norms of lists of tensors",
        "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*>(int)",
        precision="element",
    ),
    KernelPattern(
        "optimizer",
        (
            "AdamFunctor",
            "FusedAdam",
            "AdamMathFunctor",
            "AdamCapturable",
            "SGDFunctor",
            "FusedSgd",
            "FusedAdagrad",
            "AdagradFunctor",
            "LAMBStage",
            "LAMBFunctor",
            "NovoGradFunctor",
            "LionFunctor",
        ),
        "PyTorch ATen, Apex, DeepSpeed and Transformer Engine",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, "
        "float>(int, int volatile*)",
        precision="element",
    ),
    KernelPattern(
        "optimizer",
        ("kOptimizer", "kPreconditionOptimizer"),
        "bitsandbytes, optimizers with 8- and 32-bit states",
        "void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>(__nv_bfloat16*)",
    ),
    KernelPattern(
        "optimizer",
        ("amp_non_finite_check", "amp_update_scale"),
        "PyTorch ATen, gradient scaler",
        "at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)",
    ),
    KernelPattern(
        "optimizer",
        ("multi_tensor_apply_kernel", "multi_tensor_apply_for_fused"),
        "PyTorch ATen _foreach operators, and Apex",
        "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, "
        "BinaryOpListAlphaFunctor<float>>",
        precision="element",
    ),
)
