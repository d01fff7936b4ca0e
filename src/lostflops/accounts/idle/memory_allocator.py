"""The CPU allocates or frees GPU memory."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

MEMORY_ALLOCATOR = Account(
    "idle.memory_allocator",
    label="memory allocator",
    said_by_group=WHILE,
    meaning=LATE + "allocates or frees GPU memory.",
    found="`cudaMalloc`, `cudaFree`, `cuMemMap` and the like on that thread; in a steady state the "
    "framework's cache does not call them.",
    remedy="Keep the shapes steady, leave some memory free, or set "
    "`PYTORCH_ALLOC_CONF=expandable_segments:True` (before torch 2.9: `PYTORCH_CUDA_ALLOC_CONF`; not "
    "with tensors shared by CUDA IPC or managed memory).",
    order=70,
    verdict="Allocator-bound",
    makes_late="its memory allocator makes",
    spent="of device memory allocation",
    loss=Loss(
        "allocator-stalls",
        "while device memory is allocated or freed",
        0.01,
        remedies=("allocator-settings",),
        also=(
            "checkpoint-activations",
            "offload-activations",
            "offload-optimizer",
            "offload-parameters",
            "unified-memory",
        ),
        edit="host:memory-allocator=0ms",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("launch",),
            ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister"),
            "CUDA runtime: memory from and to the driver, pinned memory",
            "cudaMalloc",
        ),
        CausePattern(
            ("launch",),
            ("cuMem",),
            "CUDA driver: memory, and the mapping that expandable segments do",
            "cuMemCreate",
            also=r"^cuMem(?:Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Map|Unmap"
            r"|Release|SetAccess"
            r"|AddressReserve|AddressFree)",
        ),
        CausePattern(
            ("launch",),
            ("hip",),
            "HIP",
            "hipMalloc",
            also=r"^hip(?:Malloc|ExtMalloc|Free|HostMalloc|HostFree|HostAlloc|HostRegister|HostUnregister"
            r"|Mem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)$)",
        ),
        CausePattern(
            ("launch",),
            ("Malloc", "Free", "USM", "MemAlloc", "VirtualMem", "PhysicalMem"),
            "Level Zero, Unified Runtime, Ascend, Gaudi, MUSA and Cambricon",
            "zeMemAllocDevice",
            also=r"^zeMem(?:Alloc\w+|Free)$|^ze(?:Virtual|Physical)Mem\w+$|^ur(?:USM"
            r"|VirtualMem)(?:\w*Alloc|Free|Map|Unmap)$"
            r"|^(?:AscendCL@)?aclrt(?:Malloc\w*|Free\w*)$|^syn(?:Device|Host)(?:Malloc|Free)$"
            r"|^mu(?:sa)?(?:Malloc|Free)\w*$|^cnrt(?:Malloc|Free)\w*$",
        ),
        CausePattern(
            ("frame",),
            ("empty_cache", "_cuda_emptyCache"),
            "PyTorch: the cache given back to the driver",
            "torch/cuda/memory.py(218): empty_cache",
            also=r"torch/cuda/memory\.py\(\d+\): empty_cache$|^<built-in function _cuda_emptyCache>",
        ),
    ),
)
