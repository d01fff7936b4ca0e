"""Convolutions."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

CONVOLUTION = (
    KernelPattern(
        "convolution",
        ("_xmma_fprop_", "_xmma_dgrad_", "_xmma_wgrad_"),
        "cuDNN, implicit matrix product",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_"
        "warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel_cudnn",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        ("fprop_", "dgrad_", "wgrad_"),
        "CUTLASS, named by operation after the shape of the matrix instruction",
        "void cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8(Params)",
        also=r"\d(?:fprop|dgrad|wgrad)_",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        ("cutlass_cudnn", "cutlass__5x_cudnn", "ImplicitGemmConvolution"),
        "cuDNN's copy of CUTLASS",
        "void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<int>>(int)",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        ("cudnn_",),
        "cuDNN, named like cuBLAS by chip, type and tile",
        "volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1",
        also=r"(?:^|_)(?:[sdh]|[sh]\d{3,5})cudnn_",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        (
            "cudnn::cnn::",
            "convolve_sgemm",
            "wgrad_alg",
            "dgrad_alg",
            "dgrad2d_alg",
            "dgrad_engine",
            "flip_filter",
            "cask_cudnn",
            "winograd",
            "Winograd",
            "pointwise_mult_and_sum_complex",
        ),
        "cuDNN, direct, Winograd and explicit algorithms and their helpers",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        ("fft1d_", "fft2d_"),
        "cuDNN, convolution by Fourier transform",
        "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, cudnn::reduced_divisor)",
        also=r"fft[12]d_(?:r2c|c2r)_\d+",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        ("igemm_fwd_", "igemm_bwd_", "igemm_wrw_"),
        "MIOpen, implicit matrix product on matrix units (`gtc`)",
        "igemm_bwd_gtcx2_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64_mh_gkgs",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        ("grouped_conv", "bwd_weight", "conv_fwd", "conv_bwd"),
        "Composable Kernel",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        (
            "MIOpenConv",
            "miopenSp3AsmConv",
            "gcnAsmConv",
            "naive_conv_",
            "Im2d2Col",
            "Im2Col",
            "im2col",
            "col2im",
        ),
        "MIOpen and PyTorch, direct convolution and its unfolding",
        "Im2d2Col_v2",
        precision="matrix",
    ),
    KernelPattern(
        "convolution",
        ("conv_depthwise", "depthwise_conv", "conv1d", "conv2d", "Conv2d", "conv3d", "Conv3d", "convolution"),
        "kernels that call themselves a convolution: PyTorch ATen, causal-conv1d",
        "void at::native::conv_depthwise2d_forward_kernel<3, float, int>(at::GenericPackedTensorAccessor)",
        precision="matrix",
    ),
)
