"""Kernels that communicate, by library."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern


def _communication(
    kind: str, library: str | None, contains: tuple[str, ...], source: str, example: str, also: str = ""
) -> KernelPattern:
    return KernelPattern("communication", contains, source, example, also, library=library, kind=kind)


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


COMMUNICATION = (
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
