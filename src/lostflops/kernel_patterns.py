"""What the names of kernels mean: patterns with the family they prove, their source and an example.

Tried in order; the first that recognises a name classifies it, so what is special stands before what is
general. `classification.py` says what the families mean and reads these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KernelPattern:
    """Kernel names that mean one kind of work.

    `precision` is a precision, the name of a rule in `PRECISION_RULES` that reads it off the name, or empty.
    """

    family: str
    contains: tuple[str, ...]
    source: str
    example: str
    also: str = ""
    precision: str = ""
    tensor_cores: bool | None = None
    library: str | None = None
    kind: str | None = None


def _communication(
    kind: str, library: str | None, contains: tuple[str, ...], source: str, example: str, also: str = ""
) -> KernelPattern:
    return KernelPattern("communication", contains, source, example, also, library=library, kind=kind)


# Inductor puts the names of the operators it fused into the kernel's name (`triton_poi_fused_fmha_add_3` is
# pointwise work that follows attention), so these come before every table that looks for such words.
_INDUCTOR = (
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

_NCCL = r"nccl(?:Sym|Symk)?(?:Dev)?(?:Kernel)?_?"
_RCCL = r"(?:^|[\s:])rccl(?:Dev)?(?:Kernel)?_"
_COLLECTIVE_WORDS = (
    ("all-reduce", "all_?reduce"),
    ("all-gather", "all_?gather"),
    ("reduce-scatter", "reduce_?scatter"),
    ("all-to-all", "all_?to_?all"),
    ("broadcast", "broadcast"),
)
_DEEPEP = r"(?:^|[\s:])(?:\w+_)?ep::(?:\w+::)*|(?:intranode|internode|internode_ll)::"
_DEEPEP_PIECES = ("ep::", "intranode", "internode")

_COMMUNICATION = (
    *(
        _communication(kind, "NCCL", ("nccl",), f"NCCL and RCCL, {word}", example, also=_NCCL + word)
        for kind, word, example in (
            ("all-reduce", "AllReduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)"),
            ("all-gather", "AllGather", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            ("reduce-scatter", "ReduceScatter", "ncclSymDevKernel_ReduceScatter_LL_sum_bf16(ncclSymDevArgs)"),
            ("all-to-all", "All[Tt]o[Aa]ll", "ncclDevKernel_AllToAllPivot_RING_SIMPLE"),
            (
                "broadcast",
                "(?:Broadcast|Bcast)",
                "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long)",
            ),
            ("reduce", "Reduce(?!Scatter)", "ncclReduceRingLLKernel_sum_f32(ncclColl)"),
            ("unknown", "SendRecv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
        )
    ),
    _communication(
        "unknown",
        "RCCL",
        ("ncclDevKernel_Generic", "rccl_main_kernel"),
        "RCCL, one kernel for everything; the number is its unrolling",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        also=r"ncclDevKernel_Generic_\d|rccl_main_kernel",
    ),
    *(
        _communication(
            kind, "RCCL", ("rccl",), f"RCCL under its own name, {word}", example, also=_RCCL + word
        )
        for kind, word, example in (
            ("all-reduce", "AllReduce", "rcclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)"),
            ("all-gather", "AllGather", "rcclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)"),
            ("reduce-scatter", "ReduceScatter", "void rcclKernel_ReduceScatter_RING_SIMPLE_Sum_float(void*)"),
            ("all-to-all", "All[Tt]o[Aa]ll", "rcclDevKernel_AllToAllPivot_RING_SIMPLE"),
            ("broadcast", "(?:Broadcast|Bcast)", "rcclDevKernel_Broadcast_RING_LL"),
            ("reduce", "Reduce(?!Scatter)", "rcclDevKernel_Reduce_Sum_f32_RING_LL"),
        )
    ),
    _communication(
        "unknown",
        "RCCL",
        ("rccl",),
        "RCCL under its own name: point to point, and one kernel for everything",
        "rcclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        also=r"(?:^|[\s:])rccl\w*Kernel",
    ),
    _communication(
        "unknown",
        "NCCL",
        ("nccl",),
        "NCCL and RCCL, fused operations",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        also=r"(?:^|[\s:])nccl\w*Kernel",
    ),
    _communication(
        "unknown",
        "MSCCL",
        ("mscclKernel",),
        "MSCCL inside RCCL: the algorithm is a file, the name has only operator and type",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    ),
    *(
        _communication(kind, "MSCCL++", ("mscclpp",), "MSCCL++", example, also=rf"(?i)mscclpp\S*{word}")
        for kind, word, example in (
            (
                "all-reduce",
                "all_?reduce",
                "void mscclpp::collective::allreducePacket<mscclpp::SUM, __half>(int)",
            ),
            ("all-gather", "all_?gather", "void mscclpp::collective::allgatherFullmesh2<false>(void*)"),
            ("all-to-all", "all_?to_?all", "mscclpp::collective::alltoallvKernel(void*, int, int)"),
        )
    ),
    _communication("unknown", "MSCCL++", ("mscclpp",), "MSCCL++", "mscclpp::executionKernel<float>(int)"),
    *(
        _communication(
            kind,
            "pplx",
            (f"a2a_{kind}", "pplx::"),
            "Perplexity's kernels, expert parallelism: send and receive halves, and the older ones",
            example,
            also=rf"a2a_{kind}_(?:send|recv)\w*_kernel|pplx::(?:\w+::)*{kind}",
        )
        for kind, example in (
            ("dispatch", "void a2a_kernels::a2a_dispatch_send_kernel<16u, 8u, NotFixed>(unsigned long)"),
            ("combine", "void a2a_combine_recv_kernel<16u, 8u, Fixed<7168>, __nv_bfloat16>(unsigned long)"),
        )
    ),
    *(
        _communication(
            kind,
            "DeepEP",
            _DEEPEP_PIECES,
            "DeepEP; the namespace may be prefixed",
            example,
            f"(?:{_DEEPEP}){word}",
        )
        for kind, word, example in (
            ("notify", r"\w*notify", "void dpsk::ep::internode::cached_notify<false>(int, int, int)"),
            (
                "layout",
                r"(?:\w*_)?layout",
                "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)",
            ),
            ("dispatch", r"dispatch", "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)"),
            ("combine", r"combine", "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*)"),
            ("barrier", r"barrier", "void deep_ep::intranode::barrier<8>(int**, int)"),
            (
                "unknown",
                r"clean_low_latency_buffer",
                "deep_ep::internode_ll::clean_low_latency_buffer<1024>(int*)",
            ),
        )
    ),
    *(
        _communication(
            kind, "DeepEP", ("deep_ep",), "DeepEP, mangled", example, also=rf"deep_ep\d+int\w*?\d{word}"
        )
        for kind, word, example in (
            ("notify", "(?:cached_)?notify", "_ZN7deep_ep9intranode15notify_dispatchILi8EEEvPKiPi"),
            ("dispatch", "dispatch", "_ZN7deep_ep9internode8dispatchILb0ELi8EEEvP4int4"),
            ("combine", "combine", "_ZN7deep_ep12internode_ll7combineILi10EEEvPv"),
        )
    ),
    *(
        _communication(
            kind, "MORI", ("Ep",), "MORI, expert parallelism on AMD", example, also=rf"\bEp{word}\w*Node"
        )
        for kind, word, example in (
            (
                "dispatch",
                "Dispatch",
                "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::Args)",
            ),
            (
                "combine",
                "Combine",
                "void mori::moe::EpCombineIntraNodeKernel<__hip_bfloat16>(mori::moe::Args)",
            ),
        )
    ),
    *(
        _communication(
            kind,
            "NVSHMEM",
            ("on_stream_kernel",),
            "NVSHMEM, collectives on a stream",
            example,
            also=rf"(?<![A-Za-z]){word}_on_stream_kernel",
        )
        for kind, word, example in (
            (
                "barrier",
                "(?:barrier|sync)",
                "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)",
            ),
            ("all-to-all", "alltoall", "void alltoall_on_stream_kernel<float, 2>(int, float*, float const*)"),
            ("broadcast", "broadcast", "void broadcast_on_stream_kernel<float>(int, float*, float const*)"),
            ("all-gather", "fcollect", "void fcollect_on_stream_kernel<float>(int, float*, float const*)"),
            (
                "all-reduce",
                r"(?:rdxn|reduce)(?:_\w+)?",
                "void rdxn_on_stream_kernel<float, 1>(int, float*, float const*)",
            ),
            ("reduce-scatter", "reducescatter", "void reducescatter_on_stream_kernel<float, 1>(int, float*)"),
        )
    ),
    _communication(
        "unknown",
        "NVSHMEM",
        ("nvshmem",),
        "NVSHMEM",
        "nvshmemi_proxy_kernel(int)",
        also=r"(?:^|[\s:])nvshmem",
    ),
    _communication("unknown", "rocSHMEM", ("rocshmem",), "rocSHMEM", "rocshmem::rocshmem_barrier_kernel()"),
    *(
        _communication(kind, "symmetric memory", pieces, "PyTorch, c10d symmetric memory", example)
        for kind, pieces, example in (
            (
                "all-reduce",
                (
                    "multimem_all_reduce",
                    "multimem_one_shot_all_reduce",
                    "two_shot_all_reduce_kernel",
                    "one_shot_all_reduce_kernel",
                ),
                "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
            ),
            (
                "reduce",
                ("multimem_one_shot_reduce",),
                "void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(float*)",
            ),
            ("all-gather", ("multimem_all_gather",), "void multimem_all_gather_kernel<16>(char*, char*)"),
            (
                "barrier",
                ("symmetric_memory::barrier_kernel",),
                "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
            ),
            (
                "unknown",
                (
                    "symmetric_memory::",
                    "put_signal_kernel",
                    "wait_signal_kernel",
                    "stream_write_value32_kernel",
                ),
                "c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int)",
            ),
            (
                "all-to-all",
                ("allToAllV", "exchangeSplitAndOffset"),
                "allToAllV(void*, void*, long*, unsigned long, int, int)",
            ),
        )
    ),
    *(
        _communication(
            kind,
            "symmetric memory",
            ("symm_mem_", "multimem_"),
            "kernels on symmetric memory that say what they do",
            example,
            also=rf"(?:symm_mem|multimem)_(?:\w+_)?{word}",
        )
        for (kind, word), example in zip(
            (
                *_COLLECTIVE_WORDS,
                ("barrier", "(?:barrier|sync)(?![a-z])"),
                ("unknown", "(?:put|get|signal|wait)(?![a-z])"),
            ),
            (
                "symm_mem_two_shot_all_reduce_bf16",
                "symm_mem_all_gather",
                "multimem_reduce_scatter_kernel",
                "symm_mem_all_to_all_vdev",
                "multimem_broadcast_kernel",
                "symm_mem_sync",
                "symm_mem_put_signal",
            ),
            strict=True,
        )
    ),
    *(
        _communication(kind, "custom all-reduce", pieces, source, example)
        for kind, pieces, source, example in (
            (
                "all-reduce",
                ("cross_device_reduce_",),
                "vLLM, SGLang and aiter",
                "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)",
            ),
            (
                "all-reduce",
                ("all_reduce_one_shot", "all_reduce_two_shot"),
                "SGLang",
                "void (anonymous namespace)::all_reduce_two_shot_kernel<__nv_bfloat16, 8u, true>(int)",
            ),
            (
                "all-reduce",
                ("allreduce_fusion_kernel", "trtllm_allreduce_fusion::", "trtllm_mnnvl_allreduce::"),
                "TensorRT-LLM and FlashInfer: all-reduce with residual and norm",
                "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
            ),
            (
                "all-reduce",
                (
                    "oneShotAllReduceKernel",
                    "twoShotAllReduceKernel",
                    "TwoShotAllReduceKernel",
                    "lamport_style_one_shot_all_reduce",
                ),
                "TensorRT-LLM",
                "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(AllReduceParams)",
            ),
            (
                "all-reduce",
                ("quickreduce::allreduce",),
                "QuickReduce on AMD",
                "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(int)",
            ),
            (
                "all-reduce",
                ("one_shot_all_reduce", "two_shot_all_reduce", "all_reduce_lamport"),
                "FBGEMM, and others that say how",
                "void fbgemm_gpu::two_shot_all_reduce<true, true>(int, int, int, int*, fbgemm_gpu::vec_t<8>)",
            ),
            (
                "all-gather",
                ("allgather_lastdim", "allgather_vec", "allgather_naive"),
                "aiter",
                "void aiter::allgather_lastdim<__hip_bfloat16, 8>(aiter::RankData*, aiter::RankSignals)",
            ),
            (
                "reduce-scatter",
                ("reduce_scatter_cross_device",),
                "aiter",
                "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)",
            ),
        )
    ),
    *(
        _communication(
            kind, "userbuffers", ("userbuffers",), "Transformer Engine, userbuffers", example, also
        )
        for kind, example, also in (
            (
                "all-gather",
                "void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)",
                r"userbuffers_\w*_ag(?![a-z])",
            ),
            (
                "reduce-scatter",
                "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8, __nv_fp8_e4m3>(int)",
                r"userbuffers_\w*_rs(?![a-z])",
            ),
            ("send-receive", "kuserbuffers_pushsendrecv(int, int)", r"userbuffers_\w*send_?recv"),
            ("send", "kuserbuffers_pushsend(int, int)", r"userbuffers_\w*send"),
            ("receive", "kuserbuffers_pushrecv(int, int)", r"userbuffers_\w*recv"),
            ("all-reduce", "void userbuffers_fp16_sum_inplace_gpu_rw<8>(int)", r"userbuffers_\w*sum"),
        )
    ),
    _communication(
        "unknown", "userbuffers", ("userbuffers",), "Transformer Engine", "kuserbuffers_inc(int*)"
    ),
    *(
        _communication(kind, None, pieces, "TensorRT-LLM and SGLang, exchange of experts' tokens", example)
        for kind, pieces, example in (
            (
                "dispatch",
                ("moeA2ADispatchKernel",),
                "void tensorrt_llm::kernels::moeA2ADispatchKernel<8>(int)",
            ),
            ("combine", ("moeA2ACombineKernel",), "void tensorrt_llm::kernels::moeA2ACombineKernel<8>(int)"),
            (
                "notify",
                ("moeA2APrepare", "moeA2ASanitize", "moeAlltoAllPrepare"),
                "void tensorrt_llm::kernels::moeA2APrepareDispatchKernel(int*, int, unsigned int*)",
            ),
            (
                "all-to-all",
                ("moeAllToAll", "moeAlltoAll", "_alltoall_kernel"),
                "void tensorrt_llm::kernels::moeAlltoAllKernel<8>(int)",
            ),
        )
    ),
    *(
        _communication(
            kind,
            "HCCL",
            ("hcom_", "AicpuKernel"),
            "HCCL on Ascend: the operation as one row, and the kernel that drives it",
            example,
            also=rf"(?i)^(?:hcom_{word}(?:v|vc)?(?:_|$)|{word}\w*AicpuKernel)",
        )
        for (kind, word), example in zip(
            (*_COLLECTIVE_WORDS, ("send", "send"), ("receive", "receive"), ("unknown", "[a-z]+")),
            (
                "hcom_allReduce__503_0_1",
                "hcom_allGather_",
                "hcom_reduceScatter__213_4_1",
                "hcom_alltoallv_",
                "hcom_broadcast__213_0_1",
                "hcom_send__213_0_1",
                "hcom_receive__213_0_1",
                "hcom_batchSendRecv__213_0_1",
            ),
            strict=True,
        )
    ),
    *(
        _communication(
            kind,
            "HCCL",
            (f"MoeDistribute{word}",),
            "Ascend, exchange of experts' tokens",
            f"MoeDistribute{word}V2",
        )
        for kind, word in (("dispatch", "Dispatch"), ("combine", "Combine"))
    ),
    *(
        _communication(
            kind,
            "oneCCL",
            ("ccl_", "ccl::"),
            "oneCCL on Intel",
            example,
            also=rf"(?i)\b(?:one)?ccl(?:_|::)\S*{word}",
        )
        for (kind, word), example in zip(
            _COLLECTIVE_WORDS,
            (
                "oneccl_allreduce_large",
                "oneccl_allgatherv_small",
                "ccl::v1::reduce_scatter_kernel",
                "oneccl_alltoall",
                "oneccl_broadcast",
            ),
            strict=True,
        )
    ),
    _communication(
        "unknown", "UCC", ("ucc_",), "UCC", "ucc_ec_cuda_executor_kernel", also=r"\bucc_\w*kernel"
    ),
    _communication(
        "barrier",
        None,
        ("barrier_all",),
        "Triton-distributed and others: all ranks wait for each other",
        "barrier_all_intra_node_atomic_cas_block",
        also=r"(?:^|[\s:_])barrier_all(?:_|\b)",
    ),
    *(
        _communication(
            kind,
            None,
            pieces,
            "kernels that call themselves one",
            example,
            also=rf"(?i)(?:^|[\s:_]){word}v?(?:_(?:push|pull|ring|2d|full_?mesh))*_?kernel",
        )
        for (kind, word), pieces, example in zip(
            _COLLECTIVE_WORDS[1:4],
            (
                ("all_gather", "allgather", "AllGather", "allGather"),
                ("reduce_scatter", "reducescatter", "ReduceScatter", "reduceScatter"),
                ("all_to_all", "alltoall", "AllToAll", "allToAll"),
            ),
            ("_all_gather_kernel", "reduce_scatter_ring_kernel", "void comm::all_to_all_kernel<float>(int)"),
            strict=True,
        )
    ),
    _communication(
        "all-reduce",
        None,
        ("all_reduce", "allreduce", "AllReduce"),
        "kernels that call themselves an all-reduce",
        "my_fused_allreduce_kernel(float*)",
        also=r"(?i)all_?reduce\w*kernel",
    ),
)

# These copies bear words of other families in their names.
_COPIES_FIRST = (
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

_ATTENTION = (
    KernelPattern(
        "attention",
        ("flash::", "flash_fwd_", "flash_bwd_", "FlashAttn", "flash_attn"),
        "FlashAttention 2 and 3, in PyTorch as `pytorch_flash`",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, "
        "cutlass::bfloat16_t>>",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "attention",
        ("fmha", "Fmha", "FMHA"),
        "fused multi-head attention of xFormers, Composable Kernel, aiter, TensorRT-LLM",
        "aiter::fmha_fwd_hd128_bf16_rtz",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "attention",
        ("_sdpa_",),
        "cuDNN; its `f16` stands for any 16-bit type",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0",
        tensor_cores=True,
    ),
    KernelPattern(
        "attention",
        ("AttentionKernel<", "AttentionBackwardKernel<"),
        "CUTLASS and xFormers, memory-efficient attention",
        "void attention_kernel_batched_impl<AttentionKernel<cutlass::half_t, cutlass::arch::Sm80, true, 64>>",
        precision="matrix",
    ),
    KernelPattern(
        "attention",
        (
            "paged_attention",
            "unified_attention",
            "cached_kv_attention",
            "PrefillWith",
            "DecodeWith",
            "VariableLengthMergeStates",
            "merge_attn_states",
        ),
        "vLLM, aiter and FlashInfer, attention over a key-value cache",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, 1, 128, "
        "256, false>(int)",
        precision="matrix",
    ),
    KernelPattern(
        "attention",
        ("flash_mla", "mla_decode", "mla_a8w8", "mla_a16w16", "mla_prefill", "kn_mla_reduce"),
        "latent attention of FlashMLA and aiter",
        "_ZN5aiter45mla_a8w8_qh32_qseqlen4_gqaratio32_lse_cprr_psE.kd",
        precision="matrix",
    ),
    KernelPattern(
        "attention",
        ("attn_fwd", "attn_bwd", "sage_fwd", "bwd_kernel_dk_dv", "bwd_kernel_dkdv", "bwd_kernel_dq"),
        "attention by direction: Triton's tutorial, AMD's kernel, SageAttention, FlashMLA",
        "attn_fwd",
    ),
    KernelPattern(
        "attention",
        (
            "scaled_masked_softmax_warp",
            "scaled_upper_triang_masked_softmax",
            "scaled_aligned_causal_masked_softmax",
            "scaled_softmax_warp",
        ),
        "Megatron, Apex and Transformer Engine, softmax of attention scores",
        "void scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11>(int)",
        precision="element",
        tensor_cores=False,
    ),
)

_CONVOLUTION = (
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

_NORM = (
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

_FUSED_ELEMENTWISE = (
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

_QUANTIZE = (
    KernelPattern(
        "quantize",
        ("quantize", "Quantize", "_quant_kernel", "_quant_8bit", "_quant_", "dequant", "Dequant"),
        "kernels that call themselves a quantization: vLLM, SGLang, bitsandbytes, SageAttention, FlashInfer",
        "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(float*)",
        also=r"^(?!.*(?<!fb)gemm|.*Gemm|.*GEMM|.*matmul)",
    ),
    KernelPattern(
        "quantize",
        (
            "_cast_to_fp8",
            "per_channel_cast",
            "per_token_cast",
            "cast_back_impl",
            "cast_transpose",
            "cast_fp8",
            "cast_mxfp8",
        ),
        "casts with scales to and from 8 bits: DeepSeek, Transformer Engine",
        "void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128, false, 128, false>(__nv_"
        "bfloat16 const*)",
    ),
    KernelPattern(
        "quantize",
        ("FP8rowwise", "_FP8_qparam", "_to_hfp8", "_hfp8_to_"),
        "FBGEMM",
        "void fbgemm_gpu::(anonymous namespace)::_FP8rowwise_to_float_cuda_kernel<float>(unsigned "
        "char const*)",
    ),
)

_OPTIMIZER = (
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

_EMBEDDING = (
    KernelPattern(
        "embedding",
        (
            "embedding_codegen",
            "embedding_backward",
            "split_embedding",
            "EmbeddingBag",
            "embedding_bag",
            "permute_pooled_embs",
            "bounds_check_indices",
            "linearize_index_kernel",
        ),
        "FBGEMM, TorchRec and PyTorch ATen, lookups in tables and their backward",
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false, "
        "long>(int)",
        precision="element",
    ),
    KernelPattern(
        "embedding",
        (
            "compute_grad_weight",
            "krn_partials_per_segment",
            "krn_partial_segment_offset",
            "sum_and_scatter",
            "renorm_kernel",
        ),
        "PyTorch ATen, backward of an embedding",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long const*)",
        precision="element",
    ),
    KernelPattern(
        "embedding",
        ("embedding", "Embedding"),
        "kernels that call themselves an embedding",
        "_masked_embedding_kernel",
    ),
)

_REDUCTION = (
    KernelPattern(
        "other",
        ("topk_softmax", "topkGating", "topk_gating", "topk_sigmoid", "grouped_topk", "biased_grouped"),
        "vLLM, SGLang and TensorRT-LLM, choice of experts",
        "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16, (vllm::moe::ScoringFunc)0>(int)",
    ),
    KernelPattern(
        "reduction",
        ("softmax", "SoftMax", "Softmax", "softMax"),
        "kernels that call themselves a softmax",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("cross_entropy", "ctc_loss"),
        "losses of Liger, Unsloth, FlashAttention, Megatron, PyTorch ATen",
        "liger_cross_entropy_kernel",
    ),
    KernelPattern(
        "elementwise",
        ("nll_loss_backward", "ClassNLLCriterion_updateGradInput"),
        "PyTorch ATen, backward of the likelihood loss: one value written per row",
        "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, "
        "long>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("nll_loss_forward", "ClassNLLCriterion_updateOutput"),
        "PyTorch ATen, likelihood loss",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, "
        "float, long>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        (
            "finalizeMoeRouting",
            "moe::dev::finalize::",
            "finalize_matmul_scatter",
            "moe_sum",
            "reduce_fused_impl",
        ),
        "weighted sum of the experts' outputs: TensorRT-LLM, Triton kernels, vLLM, DeepSeek",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<"
        "cutlass::bfloat16_t>>",
    ),
    KernelPattern(
        "reduction",
        (
            "ReduceAdd>",
            "ReduceMinimum>",
            "ReduceMaximum>",
            "ReduceMean>",
            "indexing_backward_kernel",
            "indexFuncSmallIndex",
            "indexFuncLargeIndex",
        ),
        "PyTorch ATen, rows of equal index added up: scatter_add, index_add, backward of indexing",
        "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long*, long*, float*, float*, long)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("DeviceScan", "tensor_kernel_scan", "scan_by_key", "wrapped_scan_config", "cumsum", "cumprod"),
        "prefix sums: CUB, rocPRIM, PyTorch ATen",
        "void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, int>, int*, int*, cub::Sum>(int*, int*)",
    ),
    KernelPattern(
        "reduction",
        (
            "DeviceReduceKernel",
            "DeviceReduceSingleTile",
            "DeviceSegmentedReduce",
            "wrapped_reduce_config",
            "__reduce::",
        ),
        "CUB, rocPRIM and Thrust",
        "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<float>, float*, float*, int>(float*)",
        precision="element",
    ),
    KernelPattern(
        "reduction",
        ("dot_kernel", "nrm2_kernel", "asum_kernel", "reduce_1Block_kernel", "iamax_kernel"),
        "cuBLAS and rocBLAS, scalar product and norms of vectors",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>>>(int)",
        precision="matrix",
    ),
)

_GEMM = (
    KernelPattern(
        "gemm",
        ("Cijk_A",),
        "Tensile: hipBLASLt and rocBLAS",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x16x128_MI16x16x1_SN_LDSB1_AFC1",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("nvjet_",),
        "cuBLASLt since Hopper; the letters are the types",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "gemm",
        ("xmma_gemm_",),
        "cuBLAS since Ampere",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_"
        "segment_k_off_"
        "kernel__5x_cublas",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("gemv", "gemSN", "gemmSN_", "gemmk1_", "splitKreduce_kernel", "epilogue::impl::globalKernel"),
        "cuBLAS, products with vectors, and what follows a split product",
        "void gemmk1_kernel<int, float, 256, 5, false, cublasGemvTensorStridedBatched<float const>>(int)",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("deep_gemm::",),
        "DeepGEMM",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u, 1u, 128u, 128u>(float*)",
        also=r"deep_gemm::\w*(?:gemm|logits|einsum)",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "copy",
        ("grouped_gemm::cuda::utils::transpose", "deep_gemm::transpose"),
        "DeepSeek, layouts of scales and operands",
        "void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*, "
        "unsigned char*)",
    ),
    KernelPattern(
        "gemm",
        ("grouped_gemm::",),
        "DeepSeek, grouped products of experts and their descriptors",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(Params)",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        (
            "matmul_ogs",
            "fused_moe_kernel",
            "fmoe_",
            "moe_gemm",
            "mfma_moe",
            "moe_stage1",
            "moe_stage2",
            "MoeFlatmm",
        ),
        "products of experts: Triton kernels, vLLM, aiter",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("bmm_",),
        "TensorRT-LLM, batched products with block scales",
        "bmm_Bfloat16_E4m3E4m3_Fp32_t128x64x128u2_s6_et64x64_m64x64x32",
        also=r"^bmm_",
        precision="matrix",
        tensor_cores=True,
    ),
    KernelPattern(
        "gemm",
        ("Marlin<", "marlin_", "machete", "awq_gemm", "gemm_half_q_half", "kgemm_4bit", "wvSplitK", "LLGemm"),
        "products with quantized weights: Marlin, AWQ, GPTQ, bitsandbytes, vLLM on AMD",
        "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 256, 1, 8>(int4 const*)",
    ),
    KernelPattern(
        "gemm",
        ("_scaled_mm", "mm_kernel", "matmul", "Matmul", "MatMul", "matMul"),
        "kernels that call themselves a matrix product: Triton, cuDNN, XLA",
        "_w8a8_triton_block_scaled_mm",
        precision="matrix",
    ),
    KernelPattern(
        "gemm",
        ("gemm", "Gemm", "GEMM"),
        "BLAS names: cuBLAS by chip and type, CUTLASS, MAGMA, Composable Kernel; `fbgemm` is a library",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)",
        also=r"(?<!fb)gemm|Gemm|GEMM",
        precision="matrix",
    ),
)

_COPY = (
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

_OTHER = (
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

_LOOPS = (
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

# Kernels of other accelerators, whose names are an operation's and nothing else.
_ACCELERATORS = (
    *(
        KernelPattern(family, pieces, source, example, also=rf"^(?:aclnn\w*_)?(?:{words})(?:V\d|D|Grad)*$")
        for family, pieces, source, example, words in (
            (
                "convolution",
                ("Conv", "DepthwiseConv"),
                "CANN on Ascend",
                "Conv2DBackpropFilter",
                r"(?:Depthwise)?Conv[23]D(?:Backprop(?:Input|Filter))?(?:Transpose)?",
            ),
            (
                "optimizer",
                ("Apply", "ForeachAdd", "ForeachMul", "ForeachSqrt", "ForeachLerp"),
                "CANN on Ascend",
                "ApplyAdamWV2",
                r"Apply(?:Fused\w+|Adam\w*|Momentum|Adagrad|Rms\w+)|Foreach\w+",
            ),
            (
                "elementwise",
                (
                    "Add",
                    "Sub",
                    "Mul",
                    "Div",
                    "RealDiv",
                    "Neg",
                    "Exp",
                    "Log",
                    "Sqrt",
                    "Rsqrt",
                    "Pow",
                    "Gelu",
                    "Relu",
                    "Sigmoid",
                    "Silu",
                    "Swish",
                    "SwiGlu",
                    "Tanh",
                    "Less",
                    "Greater",
                    "Equal",
                    "Select",
                    "DropOutDoMask",
                    "Maximum",
                    "Minimum",
                    "Muls",
                    "Adds",
                    "Reciprocal",
                ),
                "CANN on Ascend",
                "aclnnInplaceAdd_AddAiCore_Add",
                (
                    r"Adds?|Sub|Muls?|Div|RealDiv|Neg|Exp|Log|R?[Ss]qrt|Pow|Gelu|Relu|Sigmoid|Silu|Swish|SwiGlu|Tanh"
                    r"|Less(?:Equal)?|Greater(?:Equal)?|(?:Not)?Equal|Select|DropOutDoMask|Maximum|Minimum|Reciprocal"
                ),
            ),
            (
                "reduction",
                ("Reduce", "ArgMax", "Cumsum"),
                "CANN on Ascend",
                "ReduceSum",
                r"Reduce(?:Sum|Mean|Max|Min|Any|All|Prod)|ArgMax(?:WithValue)?|Cumsum",
            ),
            (
                "copy",
                (
                    "Cast",
                    "TransData",
                    "Transpose",
                    "Gather",
                    "Scatter",
                    "Concat",
                    "Slice",
                    "Fill",
                    "ZerosLike",
                    "TensorMove",
                    "Pad",
                    "Tile",
                    "BroadcastTo",
                    "AsStrided",
                    "ViewCopy",
                ),
                "CANN on Ascend",
                "TransData",
                (
                    r"Cast|TransData|Transpose|Gather(?:Elements|Nd)?|Scatter\w*|Concat|StridedSlice|Slice|SplitV?|Fill"
                    r"|ZerosLike|TensorMove|Pad|Tile|BroadcastTo|AsStrided|ViewCopy"
                ),
            ),
        )
    ),
    KernelPattern(
        "elementwise",
        ("ElementwiseKernel", "ElementwiseGroupKernel", "LoopsKernel"),
        "PyTorch ATen on XPU",
        "at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::AddFunctor<float>>",
        also=r"xpu::\w*(?:Elementwise|Loops)\w*Kernel",
    ),
    KernelPattern(
        "reduction",
        ("ReduceKernel", "SoftmaxForward", "SoftmaxBackward"),
        "PyTorch ATen on XPU",
        "at::native::xpu::ReduceKernel<1, at::native::xpu::ReduceOp<float>>",
        also=r"xpu::",
    ),
)

KERNEL_PATTERNS: tuple[KernelPattern, ...] = (
    *_INDUCTOR,
    *_COMMUNICATION,
    *_COPIES_FIRST,
    *_ATTENTION,
    *_CONVOLUTION,
    *_NORM,
    *_FUSED_ELEMENTWISE,
    *_QUANTIZE,
    *_OPTIMIZER,
    *_EMBEDDING,
    *_REDUCTION,
    *_GEMM,
    *_COPY,
    *_OTHER,
    *_LOOPS,
    *_ACCELERATORS,
)


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
        r"(F8|B8|F4|I8|4xi8|BBS|BSS|B_BS|BS|HHS|HSS|H_HS|HS|HB|HH|H_B|S_B|SB|S_S|DB|D_B|CB|C_B|ZB|Z_B)",
        {
            "F8": "fp8", "B8": "fp8", "F4": "fp4", "I8": "int8", "4xi8": "int8",
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
    # Integers among the arguments of a matrix product's template are sizes.
    PrecisionRule(
        _types(_FLOATS),
        _FLOATS,
        "first floating-point type among the template arguments",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(int)",
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
