"""What names are said to mean: every pattern by its example, real traces by their time, and any text."""

from __future__ import annotations

import gzip
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops import tables
from lostflops.naming.classification import (
    COLLECTIVE_OF,
    COPIES,
    COPY_PATTERNS,
    KERNELS,
    KINDS,
    NAMED,
    REMAINING,
    collective_kind,
    copy_facts,
    kernel_facts,
    moves_by_itself,
    operator_facts,
    precision_of,
)
from lostflops.naming.kernel_patterns import KERNEL_PATTERNS
from lostflops.naming.kernel_patterns.matrix.precision import PRECISION_RULES, TENSOR_CORE_SIGNS
from lostflops.naming.operator_patterns import NAMED_OPERATORS, OPERATOR_FAMILIES, REMAINING_OPERATORS
from lostflops.naming.patterns import compiled

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def facts(name: str) -> dict[str, Any]:
    return kernel_facts([name]).row(0, named=True)


# Every pattern, rule and sign is alive: its example reaches it, past all that stand before it.


@pytest.mark.parametrize("pattern", KERNEL_PATTERNS, ids=lambda p: p.example[:60])
def test_a_kernel_pattern_classifies_its_own_example(pattern: Any) -> None:
    assert KERNELS.first([pattern.example]) == [pattern]
    found = facts(pattern.example)
    assert found["family"] == pattern.family
    assert (found["kind"], found["library"]) == (pattern.kind, pattern.library)
    assert (pattern.family == "communication") == (pattern.kind in KINDS)
    assert pattern.precision in (*PRECISION_RULES, "")
    assert pattern.source


@pytest.mark.parametrize("pattern", KERNEL_PATTERNS, ids=lambda p: p.example[:60])
def test_no_piece_of_a_kernel_pattern_is_claimed_by_an_earlier_one(pattern: Any) -> None:
    if not pattern.also:
        assert [p for p in KERNELS.first(pattern.contains) if p != pattern] == []


@pytest.mark.parametrize("how", PRECISION_RULES)
def test_a_precision_rule_reads_its_own_example(how: str) -> None:
    for rule in PRECISION_RULES[how]:
        first = next(r for r in PRECISION_RULES[how] if compiled(r.expression).search(rule.example))
        assert first is rule
        assert precision_of(rule.example, how) == rule.says
        assert set(rule.spelling.values()) <= set(tables.PRECISIONS)


@pytest.mark.parametrize("sign", TENSOR_CORE_SIGNS, ids=lambda s: s.example[:40])
def test_a_sign_of_matrix_units_is_found_in_its_own_example(sign: Any) -> None:
    assert next(s for s in TENSOR_CORE_SIGNS if compiled(s.expression).search(sign.example)) is sign
    assert facts(sign.example)["tensor_cores"] is sign.used


@pytest.mark.parametrize("pattern", NAMED_OPERATORS, ids=lambda p: p.example[:60])
def test_an_operator_pattern_classifies_its_own_example(pattern: Any) -> None:
    assert NAMED.first([pattern.example]) == [pattern]
    assert operator_facts([pattern.example])["family"].to_list() == [pattern.family]


@pytest.mark.parametrize("pattern", REMAINING_OPERATORS, ids=lambda p: p.example[:60])
def test_an_operator_that_is_not_looked_up_reaches_its_pattern(pattern: Any) -> None:
    assert NAMED.first([pattern.example]) == KERNELS.first([pattern.example]) == [None]
    assert REMAINING.first([pattern.example]) == [pattern]
    assert operator_facts([pattern.example])["family"].to_list() == [pattern.family]


def test_every_operator_is_looked_up_in_one_family() -> None:
    listed = [(name, family) for family, names in OPERATOR_FAMILIES.items() for name in names.split()]
    counts = Counter(name for name, _ in listed)
    assert [name for name, count in counts.items() if count > 1] == []
    found = operator_facts(f"aten::{name}_" for name, _ in listed)
    assert found["family"].to_list() == [family for _, family in listed]


@pytest.mark.parametrize(
    ("piece", "direction"),
    [(piece, p.direction) for p in COPY_PATTERNS if not p.also for piece in p.contains],
)
def test_each_spelling_of_a_direction_tells_it_alone(piece: str, direction: str) -> None:
    assert copy_facts([piece])["direction"].to_list() == [direction]


# Every spelling that some tool uses: a shorter list of pieces would lose one.
SPELLINGS = """
    Memset memset FillBuffer fillBuffer MemoryFill PtoP Peer peer HtoD HtoA HostToDevice Host-to-Device
    HOST_TO_DEVICE H2D M2D DtoH AtoH DeviceToHost Device-to-Host DEVICE_TO_HOST D2H D2M DtoD DtoA AtoD AtoA
    DeviceToDevice Device-to-Device DEVICE_TO_DEVICE D2D HtoH HostToHost Host-to-Host HOST_TO_HOST H2H M2M
"""


def test_no_spelling_of_a_copy_is_unknown() -> None:
    facts = copy_facts(SPELLINGS.split())
    assert facts.filter(pl.col("direction").cast(pl.String) == "unknown")["name"].to_list() == []


@pytest.mark.parametrize("pattern", COPY_PATTERNS, ids=lambda p: p.direction)
def test_a_copy_pattern_reads_its_own_example(pattern: Any) -> None:
    assert COPIES.first([pattern.example]) == [pattern]
    assert copy_facts([pattern.example])["direction"].to_list() == [pattern.direction]


# Names that are easily taken for something else.


@pytest.mark.parametrize(
    ("name", "family", "precision", "tensor_cores"),
    [
        ("triton_poi_fused__to_copy_add_cat_fmha_v3_fwd_mul_neg_13", "elementwise", None, False),
        ("triton_poi_fused_add_all_gather_into_tensor_2", "elementwise", None, False),
        ("triton_per_fused__to_copy_addmm_mean_pow_view_7", "reduction", None, False),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", "copy", None, False),
        ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(float const*)", "quantize", None, False),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1", "gemm", "fp8", True),
        (
            "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1",
            "gemm",
            "bf16",
            True,
        ),
        ("ampere_sgemm_128x64_tn", "gemm", "fp32", False),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn", "gemm", "fp16", True),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "gemm", "fp16", True),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", "gemm", "fp8", True),
        ("nvjet_sss_tf32_128x256_TNT", "gemm", "tf32", True),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "convolution", "fp32", False),
        (
            "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)",
            "convolution",
            "fp32",
            False,
        ),
        ("Cijk_Alik_Bljk_F8B8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256x256x128_MI16x16x1", "gemm", "fp8", True),
        ("Cijk_Ailk_Bjlk_S_B_Bias_HA_S_SAV_UserArgs_MT64x64x64_MI16x16x1_SN", "gemm", "fp32", True),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16EEEvPT0_PT_", "norm", "bf16", False),
        (
            "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
            "elementwise",
            "bf16",
            False,
        ),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>(int)", "copy", None, False),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(int)", "gemm", "fp32", False),
        ("void marlin::Marlin<1125899906909960l, 256, 4>(int4 const*, float const*)", "gemm", None, None),
        (
            (
                "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, "
                "ck_tile::ComposedAttention<0u> >(__hip_bfloat16 const*, float*)"
            ),
            "attention",
            "bf16",
            True,
        ),
        ("void splitKreduce_kernel<32, 16, int, float, __half, float, __half>(int)", "gemm", "fp16", False),
        # Composable Kernel's bf16 is an unsigned short; the float behind it is what it adds up in.
        (
            "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl<unsigned short, float>>(P)",
            "gemm",
            "bf16",
            True,
        ),
        ("void ck::kernel_gemm_xdl<ck::Gridwise<_Float16, unsigned short, float>>(P)", "gemm", "fp16", True),
        ("void ck::kernel_gemm_xdl<ck::Gridwise<ck::f8_ocp_t, float>>(P)", "gemm", "fp8", True),
        ("void ck::kernel_gemm_xdl<ck::Gridwise<float, unsigned short>>(P)", "gemm", "fp32", True),
        (
            "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::P<unsigned short, float>>>(P)",
            "attention",
            "bf16",
            True,
        ),
        ("Cijk_Ailk_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32_MI16x16x1_SN", "gemm", "tf32", True),
        # Operands first, the type of the result behind them.
        ("_ZN5aiter42f4gemm_bf16_per1x32Fp4_BpreShuffle_192x128E", "gemm", "fp4", True),
        ("_ZN5aiter37bf16gemm_fp32bf16_tn_64x64_splitk_cleanE", "gemm", "bf16", None),
        ("cutlass_80_tensorop_s1688bf16gemm_64x64_16x6_tn_align4", "gemm", None, True),
        # No plain unit computes in tf32.
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize32x32x64_stage5", "gemm", "tf32", True),
        # Nothing of the name but the precision says that the units for matrices are used.
        ("fp8_gemm_kernel", "gemm", "fp8", True),
        ("fp16_gemm_kernel", "gemm", "fp16", None),
        ("userbuffers_fp16_sum_gpu_mc_rmsnorm", "communication", None, False),
        ("void moe::dev::routing::routingCustom::routingIndicesClusterKernel<int>(int)", "other", None, None),
        ("void some::unheard_of_thing<float>(float*)", "unclassified", None, None),
        ("", "unclassified", None, None),
    ],
)
def test_a_name_is_taken_for_what_it_is(
    name: str, family: str, precision: str | None, tensor_cores: bool | None
) -> None:
    found = facts(name)
    assert (found["family"], found["precision"], found["tensor_cores"]) == (family, precision, tensor_cores)


LOOP = "void at::native::vectorized_elementwise_kernel<"


@pytest.mark.parametrize(
    ("kineto", "nsys", "family", "precision"),
    [
        (
            f"{LOOP}4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int)",
            f"{LOOP}(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (int)3>>()",
            "elementwise",
            "bf16",
        ),
        (
            (
                f"{LOOP}4, at::native::(anonymous namespace)::batch_norm_calc_invstd(at::Tensor, double)::"
                "{lambda()#1}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int)"
            ),
            (
                f"{LOOP}(int)4, at::native::<unnamed>::batch_norm_calc_invstd(const at::Tensor &, double)::"
                "[lambda() (instance 1)]::operator ()() const::[lambda(float) (instance 1)]>(int)"
            ),
            "norm",
            "fp32",
        ),
        (
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            "communication",
            None,
        ),
    ],
)
def test_both_profilers_spellings_of_a_kernel_mean_the_same(
    kineto: str, nsys: str, family: str, precision: str | None
) -> None:
    a, b = facts(kineto), facts(nsys)
    del a["name"], b["name"]
    assert a == b
    assert (a["family"], a["precision"]) == (family, precision)


@pytest.mark.parametrize(
    ("name", "library", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "NCCL", "all-reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "NCCL", "unknown"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "NCCL", "unknown"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "RCCL", "unknown"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)", "NCCL", "reduce-scatter"),
        ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", "DeepEP", "dispatch"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)", "DeepEP", "layout"),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**)", "DeepEP", "notify"),
        ("void deep_ep::internode_ll::combine<true, 10>(void*)", "DeepEP", "combine"),
        ("void uccl::intranode::notify_dispatch<8>(int const*)", "DeepEP", "notify"),
        ("void two_shot_all_reduce_kernel_inplace<float>()", "symmetric memory", "all-reduce"),
        ("void aiter::cross_device_reduce_2stage<float, 8>()", "custom all-reduce", "all-reduce"),
        ("a2a_dispatch_send_kernel", "pplx", "dispatch"),
        ("void a2a_kernels::a2a_combine_recv_kernel<16u, __nv_bfloat16>(unsigned long)", "pplx", "combine"),
        ("void pplx::internode::dispatchKernel<10, true, 8ul>(int*, unsigned long)", "pplx", "dispatch"),
        ("void tensorrt_llm::kernels::moeAlltoAllKernel<8>(int)", None, "all-to-all"),
        ("tensorrt_llm::kernels::moe_comm::moeAllToAllKernel<false>(FusedMoeCommKernel)", None, "all-to-all"),
        ("void tensorrt_llm::kernels::mnnvl_throughput::moeA2ACombineKernel<4>(int)", None, "combine"),
        ("rcclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", "RCCL", "all-reduce"),
        ("rcclDevKernel_ReduceScatter_Sum_f32_RING_LL", "RCCL", "reduce-scatter"),
        ("rcclDevKernel_SendRecv", "RCCL", "unknown"),
        ("rcclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)", "RCCL", "unknown"),
        ("symm_mem_one_shot_all_reduce_kernel", "symmetric memory", "all-reduce"),
        ("symm_mem_all_gather_bf16", "symmetric memory", "all-gather"),
        ("void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>()",
         "symmetric memory", "all-reduce"),
        ("triton_symm_mem_barrier", "symmetric memory", "barrier"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<0, 8>()",
         "custom all-reduce", "all-reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16>()",
         "custom all-reduce", "all-reduce"),
        ("void fbgemm_gpu::one_shot_all_reduce<true, true>(int, int)", "custom all-reduce", "all-reduce"),
        ("void hybrid_ep::dispatch_kernel<int>(int)", "DeepEP", "dispatch"),
        ("void nixl_ep::ep::combine<8>(int)", "DeepEP", "combine"),
        ("void mscclpp::allreduce7<__half>(void*)", "MSCCL++", "all-reduce"),
        ("ucc_ec_cuda_executor_kernel", "UCC", "unknown"),
        ("oneccl_reduce_scatter_large", "oneCCL", "reduce-scatter"),
        ("hcom_allReduce__503_0_1", "HCCL", "all-reduce"),
        ("hcom_batchSendRecv__213_0_1", "HCCL", "unknown"),
        ("allreduceAicpuKernel", "HCCL", "all-reduce"),
        ("MoeDistributeDispatch", "HCCL", "dispatch"),
    ],
)  # fmt: skip
def test_communication_kernels_name_their_library_and_kind(name: str, library: str | None, kind: str) -> None:
    found = facts(name)
    assert (found["family"], found["library"], found["kind"]) == ("communication", library, kind)


@pytest.mark.parametrize(
    "name",
    [
        "a2a_mask_softmax",
        "void my::a2a_mask_softmax_kernel<float>(float*)",
        "a2a_dispatch_mask_kernel",
        "moe_align_block_size_kernel",
        "moe_all_tokens_kernel",
        "dispatch_gather_kernel",
        "combine_heads_kernel",
        "step::dispatch<8>(int)",
        "symm_mem_softmax",
        "symmetric_quantize_kernel",
        "multimem_widget_kernel",
        "warp_allreduce_free_softmax",
        "gather_all_rows_kernel",
        "allgather_gemm_kernel",
        "void reduce_kernel<512, 1>(int)",
        "success_mask_kernel",
        "accl_kernel",
        "barrier_reduce_softmax",
        "circcl_kernel",
    ],
)
def test_a_name_that_only_resembles_communication_is_none(name: str) -> None:
    assert facts(name)["family"] != "communication"


def test_one_row_per_distinct_name_in_the_order_given() -> None:
    names = ["b_gemm", "Memset", "b_gemm", "a_gemm"]
    assert kernel_facts(names)["name"].to_list() == ["b_gemm", "Memset", "a_gemm"]
    assert kernel_facts([]).schema == kernel_facts(names).schema == operator_facts([]).schema
    assert kernel_facts([]).schema["family"] == tables.FAMILY
    assert copy_facts([]).height == 0


# Operators.


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("aten::mm", "gemm"),
        ("aten::add_.Tensor", "elementwise"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("aten::cudnn_convolution_backward_weight", "convolution"),
        ("aten::native_layer_norm", "norm"),
        ("aten::_softmax_backward_data", "reduction"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::_foreach_add_", "optimizer"),
        ("aten::_foreach_copy_", "copy"),
        ("aten::_foreach_norm", "reduction"),
        ("aten::_to_copy, seq = 12, op_id = 345", "copy"),
        ("aten::as_strided", "other"),
        ("aten::slice", "other"),
        ("aten::slice_backward", "copy"),
        ("MmBackward0", "gemm"),
        ("TBackward0", "other"),
        ("NllLossBackward", "elementwise"),
        ("autograd::engine::evaluate_function: NllLossBackward0", "elementwise"),
        ("autograd::engine::evaluate_function: ScaledDotProductFlashAttentionForCpuBackward0", "attention"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "other"),
        ("DropoutAddLayerNormFnBackward", "norm"),
        ("aiter::fmha_v3_fwd", "attention"),
        ("c10d::allreduce_", "communication"),
        ("fsdp::all_gather_copy_in", "copy"),
        ("aten::unheard_of", "unclassified"),
        ("my_range", "unclassified"),
    ],
)
def test_an_operator_belongs_to_its_family(name: str, family: str) -> None:
    assert operator_facts([name])["family"].to_list() == [family]


@pytest.mark.parametrize(
    ("name", "library", "kind"),
    [
        ("gloo:all_reduce", "gloo", "all-reduce"),
        ("nccl:_all_gather_base", "NCCL", "all-gather"),
        ("nccl:send 0->1", "NCCL", "send"),
        ("c10d::recv_", None, "receive"),
        ("_c10d_functional::reduce_scatter_tensor", None, "reduce-scatter"),
        ("_c10d_functional::wait_tensor", None, None),
        ("record_param_comms", None, "unknown"),
        ("c10d::something_new_", None, "unknown"),
    ],
)
def test_communication_of_the_host_names_its_kind(name: str, library: str | None, kind: str | None) -> None:
    found = operator_facts([name]).row(0, named=True)
    assert (found["family"], found["library"], found["kind"]) == ("communication", library, kind)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("allreduce", "all-reduce"),
        ("_allgather_base", "all-gather"),
        ("all_to_allv", "all-to-all"),
        ("c10d::alltoall_base_, op_id = 12", "all-to-all"),
        ("c10d::_reduce_scatter_base_", "reduce-scatter"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("ncclAllReduce", "all-reduce"),
        ("ncclReduce", "reduce"),
        ("MPI_Allreduce", "all-reduce"),
        ("MPI_Bcast", "broadcast"),
        ("gloo:send", "send"),
        ("coalesced", "unknown"),
        ("wait", None),
        ("init", None),
        ("ncclGroupEnd", None),
        ("aten::gather", None),
        ("aten::broadcast_tensors", None),
        ("", None),
        (None, None),
    ],
)
def test_a_collective_is_known_however_it_is_spelt(text: str | None, kind: str | None) -> None:
    assert collective_kind(text) == kind


def test_kinds_of_collectives_are_kinds() -> None:
    assert set(COLLECTIVE_OF.values()) <= set(KINDS)


# Copies.


@pytest.mark.parametrize(
    ("name", "direction", "host_memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "host to device", "pageable"),
        ("Memcpy DtoH (Device -> Pinned)", "device to host", "pinned"),
        ("Memcpy HtoD (Host -> Device)", "host to device", "unknown"),
        ("Memcpy HtoD (Managed -> Device)", "host to device", "managed"),
        ("Memcpy DtoD (Device -> Device)", "device to device", "none"),
        ("Memcpy PtoP (Device -> Device)", "peer to peer", "none"),
        ("Memcpy HtoH (Pageable -> Pinned)", "host to host", "unknown"),
        ("Memset (Device)", "memset", "none"),
        ("Memset (Unknown)", "memset", "unknown"),
        ("Memcpy Unknown (Unknown -> Unknown)", "unknown", "unknown"),
        ("CopyHostToDevice", "host to device", "unknown"),
        ("CopyDeviceToDevice", "device to device", "none"),
        ("MEMORY_COPY_DEVICE_TO_HOST", "device to host", "unknown"),
        ("[CUDA memcpy Host-to-Device]", "host to device", "unknown"),
        ("[CUDA memset]", "memset", "unknown"),
        ("Unified Host-to-Device", "migration to device", "managed"),
        ("Unified Device-to-Host", "migration to host", "managed"),
        ("Unified Device-to-Device", "migration between devices", "managed"),
        ("something", "unknown", "unknown"),
    ],
)
def test_a_copy_tells_its_direction_and_the_hosts_memory(name: str, direction: str, host_memory: str) -> None:
    assert copy_facts([name]).rows() == [(name, direction, host_memory)]


# Real traces, where they are.


class Event(msgspec.Struct):
    name: Any = None
    cat: Any = None
    ph: Any = None
    ts: Any = 0
    dur: Any = 0
    pid: Any = None
    tid: Any = None


class File(msgspec.Struct):
    traceEvents: list[Event] = []  # noqa: N815


def events(path: Path) -> list[Event]:
    try:
        return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=File).traceEvents
    except msgspec.ValidationError:  # the raw memory timeline is no trace
        return []


def kernels_of(path: Path) -> Iterator[tuple[str, int]]:
    return (
        (e.name, round(e.dur * 1000)) for e in events(path) if e.ph == "X" and e.cat in ("kernel", "Kernel")
    )


def kineto(*patterns: str) -> list[Any]:
    found = [p for pattern in patterns for p in sorted((TRACES / "kineto").glob(pattern))]
    return [pytest.param(p, id=p.stem[:40]) for p in found] or [
        pytest.param(None, marks=pytest.mark.skip(reason="the shared traces are not here"))
    ]


def unclassified_share(time_of: Counter[str], facts: pl.DataFrame) -> float:
    named = dict(facts.select("name", "family").iter_rows())
    total = sum(t for name, t in time_of.items() if named[name] != "communication")
    return sum(t for name, t in time_of.items() if named[name] == "unclassified") / max(total, 1)


@pytest.mark.parametrize("path", kineto("[!g]*/*.gz"))
def test_at_most_one_percent_of_a_traces_kernel_time_is_unclassified(path: Path) -> None:
    time_of: Counter[str] = Counter()
    for name, ns in kernels_of(path):
        time_of[name] += ns
    assert unclassified_share(time_of, kernel_facts(time_of)) <= 0.01


@pytest.mark.parametrize("name", ["fastvideo_sp2_2xH100_1s", "fastvideo_train_2xH100_before"])
def test_at_most_one_percent_of_an_exports_kernel_time_is_unclassified(name: str, tmp_path: Path) -> None:
    packed = TRACES / "nsys" / f"{name}.sqlite.zst"
    if not packed.exists():
        pytest.skip("the shared traces are not here")
    zstandard = pytest.importorskip("zstandard")
    export = tmp_path / "export.sqlite"
    with packed.open("rb") as source, export.open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    with sqlite3.connect(export) as database:
        rows = database.execute(
            "SELECT value, SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "JOIN StringIds ON id = demangledName GROUP BY value"
        ).fetchall()
    database.close()
    time_of = Counter(dict(rows))
    assert unclassified_share(time_of, kernel_facts(time_of)) <= 0.01


def test_communication_of_the_deepseek_step_is_its_36_deepep_kernels() -> None:
    path = TRACES / "kineto" / "deepseek" / "train.json.gz"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    rows = pl.DataFrame(list(kernels_of(path)), schema={"name": pl.String, "ns": pl.Int64}, orient="row")
    found = rows.join(kernel_facts(rows["name"]), on="name").filter(pl.col("family") == "communication")
    assert found["library"].unique().to_list() == ["DeepEP"]
    assert (found.height, found["ns"].sum()) == (36, 113_440_000)
    by_kind = {
        kind: (count, ns)
        for kind, count, ns in found.group_by("kind").agg(pl.len(), pl.sum("ns")).iter_rows()
    }
    assert by_kind == {
        "combine": (8, 49_448_000),
        "dispatch": (8, 31_004_000),
        "notify": (16, 32_578_000),
        "layout": (4, 410_000),
    }


@pytest.mark.parametrize(
    "path",
    kineto(
        "gen_torch213_cpu/ddp_rank0*", "gen_torch213_cpu/fsdp2_rank1*", "gen_torch213_cpu/tp_pp_rank2*",
        "hta/cpu_only*", "hta/distributed_info*", "hta/mtia*",
    ),
)  # fmt: skip
def test_at_most_one_percent_of_host_operators_own_time_is_unclassified(path: Path) -> None:
    own: Counter[str] = Counter()
    threads: defaultdict[Any, list[Event]] = defaultdict(list)
    for event in events(path):
        if event.ph == "X" and event.cat == "cpu_op":
            threads[event.pid, event.tid].append(event)
    for rows in threads.values():
        open_rows: list[Event] = []
        for row in sorted(rows, key=lambda e: (e.ts, -e.dur)):
            while open_rows and open_rows[-1].ts + open_rows[-1].dur <= row.ts:
                open_rows.pop()
            if open_rows:
                own[open_rows[-1].name] -= row.dur
            own[row.name] += row.dur
            open_rows.append(row)
    assert unclassified_share(own, operator_facts(own)) <= 0.01


# Hostile and large input.

PIECES = [*sorted({piece for p in KERNEL_PATTERNS for piece in p.contains}), *"<>(){}_A", "::", "x9"]
TROUBLE = [
    "triton_red_fused_mean_pow",
    "(a",
    "Memcpy (a -> b",
    "::ep",
    "xmma_a_",
    "ep::a::",
    "bmm_a",
    "1gemm_a_",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text() | st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_is_one_row_of_valid_facts(names: list[str]) -> None:
    for found in (kernel_facts(names), operator_facts(names), copy_facts(names)):
        assert found["name"].to_list() == list(dict.fromkeys(names))
        assert found.drop("name").null_count().row(0)[0] == 0
    for name in names:
        assert collective_kind(name) in (*KINDS, None)


def everything(names: list[str]) -> float:
    began = time.perf_counter()
    kernel_facts(names)
    operator_facts(names)
    copy_facts(names)
    for name in names:
        collective_kind(name)
    return time.perf_counter() - began


@pytest.mark.parametrize("piece", TROUBLE)
def test_a_name_of_a_million_characters_takes_no_time(piece: str) -> None:
    assert everything([piece * (10**6 // len(piece))]) < 0.5


def test_no_repetition_makes_an_expression_slow() -> None:
    names = [piece * (2000 // len(piece)) for piece in [*PIECES, *TROUBLE]]
    assert everything(names) < 10e-3 * len(names)


def test_a_thousand_names_take_milliseconds() -> None:
    examples = [p.example for p in KERNEL_PATTERNS]
    names = [f"{example}, {i}" for i in range(1000 // len(examples) + 1) for example in examples][:1000]
    kernel_facts(names)  # compiles the expressions
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        kernel_facts(names)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.1


def test_only_a_migration_that_nobody_launched_moves_by_itself() -> None:
    rows = [
        ("migration to device", None, True),
        ("migration to host", None, True),
        ("migration to device", 7, False),
        ("host to device", None, False),
        ("host to device", 7, False),
        (None, None, False),
        (None, 7, False),
    ]
    copies = pl.DataFrame(
        rows, {"direction": pl.String, "launch_start": pl.Int64, "told": pl.Boolean}, orient="row"
    )
    assert copies.select(moves_by_itself()).to_series().to_list() == copies["told"].to_list()


@pytest.mark.parametrize("name", ["bwd_kernel_fuse", "bwd_preprocess", "bwd_kernel_dk_dv"])
def test_amd_s_backward_of_attention_is_attention(name: str) -> None:
    """As PyTorch on ROCm launches it: a twentieth of a healthy job's compute was of no known family."""
    (found,) = kernel_facts([name]).to_dicts()
    assert found["family"] == "attention"


@pytest.mark.parametrize("of", ["flex_attention_0", "convolution_relu_3", "addmm_relu_12"])
def test_a_kernel_that_may_use_matrix_units_and_does_not_say_is_not_known_to(of: str) -> None:
    (found,) = kernel_facts([f"triton_tem_fused_{of}"]).to_dicts()
    assert found["tensor_cores"] is None
