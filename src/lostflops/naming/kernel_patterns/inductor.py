"""Kernels that PyTorch Inductor writes."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

# Inductor puts the names of the operators it fused into the kernel's name (`triton_poi_fused_fmha_add_3` is
# pointwise work that follows attention), so these come before every table that looks for such words.
INDUCTOR = (
    KernelPattern(
        "attention",
        ("triton_tem_fused_",),
        "PyTorch Inductor, template of flex attention",
        "triton_tem_fused_flex_attention_0",
        also=r"^triton_tem_fused_\w*attention",
    ),
    KernelPattern(
        "convolution",
        ("triton_tem_fused_",),
        "PyTorch Inductor, template of convolution",
        "triton_tem_fused_convolution_relu_3",
        also=r"^triton_tem_fused_\w*convolution",
    ),
    KernelPattern(
        "gemm",
        ("triton_tem_fused_", "triton_mm", "triton_bmm"),
        "PyTorch Inductor, templates of mm, addmm, bmm, scaled_mm, grouped_mm",
        "triton_tem_fused_addmm_relu_12",
        also=r"^triton_(?:tem_fused_\w*mm|mm|bmm)",
    ),
    KernelPattern(
        "norm",
        ("triton_per_fused_", "triton_red_fused_"),
        "PyTorch Inductor, reduction of a norm",
        "triton_red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view_18",
        also=r"^triton_(?:per|red)_fused_\w*(?:layer_norm|rms_norm|group_norm|batch_norm)",
    ),
    KernelPattern(
        "norm",
        ("triton_per_fused_", "triton_red_fused_"),
        "PyTorch Inductor, mean of squares and its reciprocal root: an RMS norm written out",
        "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1",
        also=r"^triton_(?:per|red)_fused_(?=\w*_mean_)(?=\w*_pow_)(?=\w*_rsqrt_)",
    ),
    KernelPattern(
        "reduction",
        ("triton_per_fused_", "triton_red_fused_", "triton_spl_fused_"),
        "PyTorch Inductor, persistent, looped and split reductions",
        "triton_red_fused_abs_amax_transpose_view_32",
        also=r"^triton_(?:per|red|spl)_",
    ),
    KernelPattern(
        "copy",
        ("triton_poi_fused_",),
        "PyTorch Inductor, pointwise kernels that only move or cast",
        "triton_poi_fused_clone_transpose_21",
        also=r"^triton_poi_fused(?:_(?:_to_copy|to_copy|clone|copy|cat|stack|transpose|permute|t|view"
        r"|_unsafe_view|expand|slice|split|select|squeeze|unsqueeze|unbind|as_strided|constant_pad_nd"
        r"|zeros|zeros_like|ones|full))+_\d+(?![\w])",
    ),
    KernelPattern(
        "elementwise",
        ("triton_poi_fused_", "triton_for_fused_"),
        "PyTorch Inductor, pointwise kernels, and several of them in one (`for`)",
        "triton_poi_fused_addmm_gelu_view_17",
        also=r"^triton_(?:poi|for)_",
    ),
    KernelPattern(
        "other",
        ("triton_",),
        "PyTorch Inductor before 2.1: the name lists the arguments and nothing else",
        "triton__0d1d2d3d4d5d",
        also=r"^triton__?(?:0d|\d+d|\d+$)",
    ),
)
