"""The CPU compiles, loads or tunes kernels."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

COMPILATION = Account(
    "idle.compilation",
    label="compilation",
    said_by_group=WHILE,
    meaning=LATE + "compiles, loads or tunes kernels.",
    found="Ranges, frames and calls of compilers, of lazy module loading and of autotuning on that thread.",
    remedy="Record after the warm-up. If it goes on, some shapes change: pad them, or mark them dynamic; "
    "compile block by block. After 8 recompilations (`recompile_limit`) a function runs eagerly.",
    order=50,
    verdict="Held up by compilation",
    makes_late="compilation on it makes",
    spent="of compilation",
    loss=Loss(
        "compilation-inside-step",
        "while kernels are compiled or loaded",
        0.01,
        on_host="while code is compiled",
        remedies=("steady-shapes",),
        edit="host:compilation=0ms",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("launch",),
            (
                "cuModuleLoad",
                "cuLibraryLoad",
                "cuLinkCreate",
                "cuLinkAdd",
                "cuLinkComplete",
                "hipModuleLoad",
                "nvrtcCompile",
                "hiprtcCompile",
            ),
            "CUDA and HIP: code compiled, linked and loaded",
            "cuModuleLoadDataEx",
        ),
        CausePattern(
            ("range",),
            ("oading", "ompiler"),
            "Kineto and Nsight Systems, overhead that is the application's own",
            "Lazy Function Loading",
            also=r"^(?i:lazy function loading|runtime (?:triggered )?module loading"
            r"|driver (?:jit )?compiler)",
        ),
        CausePattern(
            ("range", "operator"),
            ("(dynamo_timed)",),
            "PyTorch, phases of Dynamo, Inductor and their tuning; operators since 2.13",
            "compile_fx_inner (dynamo_timed)",
            also=r"\(dynamo_timed\)$",
        ),
        CausePattern(
            ("operator",),
            ("dynamo",),
            "PyTorch since 2.13, all that Dynamo does to compile a frame",
            "dynamo",
            also=r"^dynamo$",
        ),
        CausePattern(
            ("range", "operator"),
            (
                "entire_frame_compile",
                "compile_inner",
                "backend_compile",
                "compile_fx",
                "create_aot_dispatcher_function",
                "GraphLowering.",
                "Scheduler.codegen",
                "async_compile.wait",
                "benchmark_all_configs",
                "autotun",
                "Autotun",
            ),
            "PyTorch since 2.13, the same phases without the mark; and what calls itself tuning",
            "entire_frame_compile",
        ),
        CausePattern(
            ("frame",),
            ("torch/_dynamo/",),
            "PyTorch Dynamo while it traces; `eval_frame.py` also runs what is compiled and proves nothing",
            "torch/_dynamo/convert_frame.py(715): _compile",
            also=r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph"
            r"|bytecode_transformation|variables/\w+)\.py\(",
        ),
        CausePattern(
            ("frame",),
            ("torch/_inductor/",),
            "PyTorch Inductor while it compiles; the same files hold the functions that run what is compiled",
            "torch/_inductor/graph.py(2018): compile_to_module",
            also=r"torch/_inductor/(?:graph|scheduler|lowering|select_algorithm|codegen/[\w/]+)\.py\("
            r"|torch/_inductor/compile_fx\.py\(\d+\): (?:_?compile_fx|_?compile_fx_inner|fx_codegen_and_"
            r"compile|codegen_and_compile)$"
            r"|torch/_inductor/runtime/\w+\.py\(\d+\): (?:precompile|_precompile_\w+|benchmark_all_"
            r"configs|autotune_to_one_config)$",
        ),
        CausePattern(
            ("frame",),
            ("triton/",),
            "Triton while it compiles and tunes; a launch passes through the same files",
            "triton/compiler/compiler.py(226): compile",
            also=r"triton/compiler/(?:compiler\.py\(\d+\): compile$|code_generator\.py\()"
            r"|triton/backends/\w+/compiler\.py\(\d+\): make_\w+$"
            r"|triton/runtime/(?:autotuner\.py\(\d+\): (?:_bench|benchmark)|jit\.py\(\d+\): _do_compile)$"
            r"|triton/testing\.py\(\d+\): do_bench",
        ),
        CausePattern(
            ("frame",),
            ("torch/utils/cpp_extension.py", "torch/_functorch/"),
            "PyTorch, extensions built on first use and the split of forward and backward graphs",
            "torch/utils/cpp_extension.py(1980): _jit_compile",
            also=r"cpp_extension\.py\(\d+\): (?:load|load_inline|_jit_compile)$"
            r"|torch/_functorch/aot_autograd\.py\(\d+\): (?:aot_module_simplified|create_aot_dispatcher_"
            r"function)$",
        ),
    ),
)
