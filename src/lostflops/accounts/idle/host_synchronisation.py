"""The CPU waits for the GPU."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

HOST_SYNCHRONISATION = Account(
    "idle.host_synchronisation",
    label="host synchronisation",
    said_by_group=WHILE,
    meaning=LATE + "waits for the GPU, or has launched no new work yet after that wait.",
    found="Synchronising calls on that thread (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, "
    "`aten::item`, a blocking copy); where such a call had emptied the queue, also what follows "
    "until new work arrives (operators, launches, and less than a millisecond of other code or of what was "
    "not recorded), for at most as long as the call took. On a CPU-only trace: "
    "calls of communication (`wait_tensor`, `c10d::…`) while no recorded communication runs.",
    remedy="Move `.item()`, `.cpu()` and prints of GPU values out of the step, or do them every hundredth "
    "step.",
    remedy_on_host="Communicate in fewer and larger calls (DDP: a larger `bucket_cap_mb`; no barrier in the "
    "step), and leave cores free for the threads that communicate.",
    order=90,
    verdict="Synchronisation-bound",
    makes_late="its synchronising makes",
    spent="of waiting for the device",
    loss=Loss(
        "host-waits-for-device",
        "because the CPU waited for it before it launched more work",
        0.03,
        takes_copies=True,
        on_host="inside calls of communication",
        remedies=("remove-syncs",),
        edit="no-sync",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("launch",),
            ("Synchronize",),
            "CUDA and HIP: return when the device is done",
            "cudaStreamSynchronize_v3020",
            also=r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Thread|Ctx)Synchronize$",
        ),
        CausePattern(
            ("launch",),
            ("Memcpy",),
            "CUDA and HIP: copies between host and device that return when done",
            "hipMemcpyWithStream",
            also=r"^(?:cuda|cu|hip)Memcpy(?!\w*(?:Async|Peer|DtoD|DeviceToDevice))\w*$",
        ),
        CausePattern(
            ("launch",),
            ("ynchroni", "EventWait", "EventsWait", "QueueFinish", "QueueSync", "WaitNotifier"),
            "Level Zero, Unified Runtime, Ascend, Gaudi, MTIA, MUSA and Cambricon",
            "zeCommandQueueSynchronize",
            also=r"^ze\w*Synchronize$|^(?:ur|pi)(?:Event|Events|EventsAnd)Wait$|^(?:ur|pi)QueueFinish$"
            r"|^(?:AscendCL@)?aclrtSynchronize\w*$|^syn(?:Stream|Event|Device)Synchronize$"
            r"|^synchronize(?:Stream|Device|Event)?$|^mu(?:sa)?(?:Device|Stream|Event|Ctx)Synchronize$"
            r"|^cnrt(?:Queue|Device)Sync$|^cnrtWaitNotifier$",
        ),
        CausePattern(
            ("operator", "range"),
            ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"),
            "PyTorch: a value, or a size that depends on values, is needed on the host",
            "aten::_local_scalar_dense",
            also=r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$",
        ),
        CausePattern(
            ("range",),
            (" Sync", " sync"),
            "Kineto and Nsight Systems: what a host call waited for, as the device's side saw it",
            "Stream Sync",
            also=r"^(?:Context|Stream|Event) [Ss]ync(?:hronize)?$",
        ),
        CausePattern(
            ("frame",),
            ("<built-in",),
            "PyTorch: values read on the host, events and devices waited for",
            "<built-in method item of Tensor object at 0x7f11dcef5090>",
            also=r"^<built-in (?:method (?:item|tolist|cpu|nonzero) of Tensor object"
            r"|method synchronize of \S*(?:Event|Stream)\w* object|function _cuda_synchronize>)",
        ),
        CausePattern(
            ("frame",),
            ("torch/cuda/",),
            "PyTorch",
            "torch/cuda/__init__.py(975): synchronize",
            also=r"torch/cuda/(?:__init__|streams)\.py\(\d+\): synchronize$",
        ),
    ),
)
