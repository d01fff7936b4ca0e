"""In which precision a kernel computes, and whether on tensor cores, as far as its name tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PrecisionRule:
    """Where a name says its precision: group 1 of the expression, spelt as that library does."""

    expression: str
    spelling: Mapping[str, str] = field(hash=False)
    source: str
    example: str
    says: str


_WORDS = {
    "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "f16": "fp16", "half": "fp16",
    "fp32": "fp32", "f32": "fp32",
    "fp64": "fp64", "f64": "fp64", "fp8": "fp8", "e4m3": "fp8", "e5m2": "fp8", "fp4": "fp4", "mxfp4": "fp4",
    "nvfp4": "fp4", "int8": "int8", "i8": "int8", "s8": "int8", "u8": "int8",
}  # fmt: skip


_LETTERS = {"s": "fp32", "c": "fp32", "d": "fp64", "z": "fp64", "h": "fp16"}


_FLOATS = {
    "float": "fp32", "float2": "fp32", "double": "fp64", "double2": "fp64",
    "half": "fp16", "__half": "fp16", "Half": "fp16", "half_t": "fp16", "6__half": "fp16", "_Float16": "fp16",
    "DF16_": "fp16", "BFloat16": "bf16", "bfloat16_t": "bf16", "__nv_bfloat16": "bf16",
    "__hip_bfloat16": "bf16",
    "hip_bfloat16": "bf16", "__bf16": "bf16", "DF16b": "bf16", "tfloat32_t": "tf32",
    "float_e4m3_t": "fp8", "float_e5m2_t": "fp8", "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8",
    "__nv_fp8_e4m3": "fp8", "__nv_fp8_e5m2": "fp8", "float_e2m1_t": "fp4",
}  # fmt: skip


_INTEGERS = {"int": "integer", "long": "integer", "short": "integer", "int8_t": "int8"}


def _types(spelling: Mapping[str, str]) -> str:
    """An expression for the first C++ type; the distinctive ones are found inside mangled names too."""
    words = "|".join(t for t in spelling if not t.startswith(("__nv_b", "__hip", "hip", "__bf", "DF16", "6")))
    return (
        rf"((?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])"
        r"|__nv_bfloat16|__hip_bfloat16|hip_bfloat16|bfloat16_t|BFloat16|tfloat32_t|DF16b|DF16_|6__"
        r"half|__bf16)"
    )


_ELEMENT = (
    PrecisionRule(
        _types(_FLOATS | _INTEGERS),
        _FLOATS | _INTEGERS,
        "first element type among the template arguments, or of the functor",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>",
        "bf16",
    ),
)


# Expressions that begin with a plain word fail fast, so they stand first.
_MATRIX = (
    PrecisionRule(
        r"Cijk_A\w{1,8}_B\w{1,8}?_"
        r"(F8|B8|F4|I8|4xi8|S_MX|BBS|BSS|B_BS|BS|HHS|HSS|H_HS|HS|HB|HH|H_B|S_B|SB|S_S|DB|D_B|CB|C_B|ZB|Z_B)",
        {
            "F8": "fp8", "B8": "fp8", "F4": "fp4", "I8": "int8", "4xi8": "int8", "S_MX": "tf32",
            "BBS": "bf16", "BSS": "bf16", "B_BS": "bf16", "BS": "bf16",
            "HHS": "fp16", "HSS": "fp16", "H_HS": "fp16", "HS": "fp16", "HB": "fp16", "HH": "fp16",
            "H_B": "fp16",
            "S_B": "fp32", "SB": "fp32", "S_S": "fp32", "DB": "fp64", "D_B": "fp64",
            "CB": "fp32", "C_B": "fp32", "ZB": "fp64", "Z_B": "fp64",
        },
        "Tensile, letters of the operands",
        "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN",
        "bf16",
    ),
    PrecisionRule(
        r"(?:^|\s|::|aiter\d{1,3})(f4|f8|fp8|bf16|fp16|i8)gemm",
        {"f4": "fp4", "f8": "fp8", "fp8": "fp8", "bf16": "bf16", "fp16": "fp16", "i8": "int8"},
        "aiter: the operands' type begins the name, the result's follows",
        "_ZN5aiter42f4gemm_bf16_per1x32Fp4_BpreShuffle_192x128E",
        "fp4",
    ),
    PrecisionRule(
        r"nvjet_(?:sm\d+_)?(qq|oo|t|h)",
        {"t": "bf16", "h": "fp16", "qq": "fp8", "oo": "fp4"},
        "cuBLASLt since Hopper, first letters",
        "nvjet_sm100_ootst_128x128_256x7_4x1_2cta_v_bx_Avec16UE4M3_Bvec16UE4M3_TNT",
        "fp4",
    ),
    PrecisionRule(
        r"nvjet_\w{1,12}?_(tf32)_", _WORDS, "cuBLASLt since Hopper", "nvjet_sss_tf32_128x256_TNT", "tf32"
    ),
    PrecisionRule(
        r"xmma_[a-z_]*_f32f32_(tf32)f32_",
        _WORDS,
        "cuBLAS since Ampere: operands in memory first, then as they are multiplied",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_"
        "kernel__5x_cublas",
        "tf32",
    ),
    PrecisionRule(
        r"xmma_[a-z_]*_(tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|s8|u8)",
        _WORDS,
        "cuBLAS and cuDNN since Ampere: operands first",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4",
        "fp32",
    ),
    PrecisionRule(
        r"block_scaled_u?e\d+m\d+x(f4|f8)",
        {"f4": "fp4", "f8": "fp8"},
        "CUTLASS 3, block scales",
        "cutlass3x_sm100_bstensorop_s256x192x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_f16_256x192x256",
        "fp4",
    ),
    PrecisionRule(
        r"tensorop_([sdh])(?:1688|884|16816)gemm_\d",
        {"s": "tf32", "d": "fp64", "h": "fp16"},
        "cuBLAS: single precision on tensor cores without a type is TF32",
        "cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4",
        "tf32",
    ),
    PrecisionRule(
        r"cublasGemvTensor\w*<(float2?|double2?|__half|__nv_bfloat16)",
        _FLOATS,
        "cuBLAS, products with vectors",
        "void gemmk1_kernel<int, float, 256, 5, false, cublasGemvTensorStridedBatched<__half const>>(int)",
        "fp16",
    ),
    PrecisionRule(
        r"bmm_\w+?_(?:Mx)?(E2m1|E4m3|Bfloat16|Fp16)",
        {"E2m1": "fp4", "E4m3": "fp8", "Bfloat16": "bf16", "Fp16": "fp16"},
        "TensorRT-LLM, operands after the result",
        "bmm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16tokFp32_t128x128x256",
        "fp4",
    ),
    PrecisionRule(
        r"Qkv(E4m3|Bfloat16|Fp16)",
        {"E4m3": "fp8", "Bfloat16": "bf16", "Fp16": "fp16"},
        "TensorRT-LLM, attention",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ128Kv128PersistentContext",
        "bf16",
    ),
    PrecisionRule(
        r"matmul_ogs_\w*?_(bf16|fp16|fp8|fp32)x",
        _WORDS,
        "Triton kernels: the first operand; 4-bit weights are widened to it",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1",
        "bf16",
    ),
    PrecisionRule(
        r"(?:tensorop|volta|turing|ampere|hopper)_(bf16|fp16|f16|tf32|e4m3|s8|int8)_",
        _WORDS,
        "cuBLAS and CUTLASS, type before the operation",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8",
        "bf16",
    ),
    PrecisionRule(
        r"(tf32)(?:gemm|fprop|dgrad|wgrad)",
        _WORDS,
        "CUTLASS 3",
        "cutlass3x_sm90_tensorop_s64x128x8tf32gemm_f32_f32_f32_f32_f32_128x128x32",
        "tf32",
    ),
    PrecisionRule(
        r"\d(?:gemm|fprop|dgrad|wgrad)_(?:[a-z]+_)?(tf32|bf16|fp16|f16|e4m3|e5m2|s8|int8|f64)_",
        _WORDS,
        "cuBLAS and CUTLASS, type after the operation",
        "cutlass_tensorop_s1688dgrad_optimized_tf32_128x128_16x4_nhwc_unity_stride_align4",
        "tf32",
    ),
    PrecisionRule(
        r"(?<![a-z0-9])(h)\d{3,5}(?:gemm|cudnn)",
        _LETTERS,
        "cuBLAS and cuDNN, matrix instructions of half precision",
        "volta_h884gemm_128x64_ldg8_nn",
        "fp16",
    ),
    PrecisionRule(
        r"(?<![a-z0-9])g?([sdczh])(?:gemm|cudnn)(?![a-z0-9])",
        _LETTERS,
        "BLAS letters; g is the Gauss complex product",
        "volta_gcgemm_32x32_nt",
        "fp32",
    ),
    PrecisionRule(
        r"(?<![A-Za-z0-9])"
        r"(tf32|bf16|fp16|f16|half|fp32|fp64|f64|fp8|e4m3|e5m2|mxfp4|nvfp4|fp4|int8)"
        r"(?![A-Za-z0-9])",
        _WORDS,
        "a type as a word of the name",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8",
        "bf16",
    ),
    PrecisionRule(
        r"^(?=.*\bck(?:_tile)?::).*?(?<![A-Za-z0-9_])"
        r"(unsigned short|_Float16|__bf16|__hip_bfloat16|half_t|bhalf_t|bf16_t|float|double"
        r"|b?f8_(?:fnuz|ocp)_t|signed char)"
        r"(?![A-Za-z0-9_])",
        {
            "unsigned short": "bf16", "__bf16": "bf16", "__hip_bfloat16": "bf16", "bhalf_t": "bf16",
            "bf16_t": "bf16",
            "_Float16": "fp16", "half_t": "fp16", "float": "fp32", "double": "fp64", "signed char": "int8",
            **dict.fromkeys(("f8_fnuz_t", "f8_ocp_t", "bf8_fnuz_t", "bf8_ocp_t"), "fp8"),
        },
        "Composable Kernel: the first type; its bf16 is an unsigned short",
        "void ck::kernel_gemm_xdl_cshuffle_v3<ck::Gridwise<unsigned short, unsigned short, float>>",
        "bf16",
    ),
    PrecisionRule(
        r"vllm::paged_attention\w*<(unsigned short|__nv_bfloat16|__hip_bfloat16|float)",
        _FLOATS | {"unsigned short": "fp16"},
        "vLLM: its fp16 is an unsigned short",
        "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128, 16>(float*, float*)",
        "fp16",
    ),
    # Partial products are summed in fp32, whatever was multiplied: a type beside it tells that.
    PrecisionRule(
        r"splitKreduce_kernel<.*?(__nv_bfloat16|__half|double)",
        _FLOATS,
        "cuBLAS, sums of split products",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(int)",
        "bf16",
    ),
    # Integers among the arguments of a matrix product's template are sizes.
    PrecisionRule(
        _types(_FLOATS),
        _FLOATS,
        "first floating-point type among the template arguments",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(int)",
        "fp32",
    ),
)  # fmt: skip


PRECISION_RULES: Mapping[str, tuple[PrecisionRule, ...]] = {"element": _ELEMENT, "matrix": _MATRIX}


@dataclass(frozen=True)
class TensorCoreSign:
    """A sign in the name of a matrix product that it ran on matrix units, or that it did not."""

    expression: str
    used: bool
    source: str
    example: str


TENSOR_CORE_SIGNS: tuple[TensorCoreSign, ...] = (
    TensorCoreSign(
        r"_MI\d+x\d+|mfma|MFMA|xdl|Xdl|_gtcx\d",
        True,
        "AMD, matrix instructions of Tensile, Composable Kernel and MIOpen",
        "Cijk_Alik_Bljk_BBS_BH_MT128x64x64_MI32x32x8x1_SN_1LDSB0",
    ),
    TensorCoreSign(
        r"_simt_|ffma|gemv|gemmSN_|gemmk1_|splitKreduce|globalKernel|ReduceSplitK",
        False,
        "CUTLASS `simt`, fused multiply-add, products with vectors, sums of split products",
        "cutlass_80_simt_sgemm_128x32_8x5_nn_align1",
    ),
    TensorCoreSign(
        r"tensor\d+x\d+x\d+|warpgroupsize|tensorop|TensorOp|wmma|WMMA|gmma|GMMA|UMMA|Umma|tcgen05",
        True,
        "NVIDIA, names of matrix instructions",
        "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_"
        "warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn_infer",
    ),
    TensorCoreSign(
        r"(?<![a-z0-9])[sdhi](?:\d{3,6}|\d+x\d+x\d+)(?:gemm|cudnn|fprop|dgrad|wgrad)",
        True,
        "NVIDIA, the shape of a matrix instruction before the operation",
        "volta_h884gemm_128x64_ldg8_nn",
    ),
    TensorCoreSign(
        r"wgrad_alg\d|dgrad_alg\d|dgrad2d_alg\d|dgrad_engine|winograd|fft[12]d_|flip_filter"
        r"|pointwise_mult_and_sum|cask_cudnn|reduce_wgrad|[Ii]m2[Cc]ol|2d2Col",
        False,
        "cuDNN and MIOpen, algorithms and helpers that have no matrix instructions",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
    ),
    TensorCoreSign(
        r"(?<![a-z0-9])g?[sdcz](?:gemm|cudnn)(?![a-z0-9])",
        False,
        "cuBLAS and cuDNN, plain single and double precision",
        "volta_scudnn_128x64_relu_small_nn_v1",
    ),
)
