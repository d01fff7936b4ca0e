"""Kernels of other accelerators."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

# Kernels of other accelerators, whose names are an operation's and nothing else.
ACCELERATORS = (
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
