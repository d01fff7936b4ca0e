"""The CPU runs Python's garbage collector."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

GARBAGE_COLLECTION = Account(
    "idle.garbage_collection",
    label="garbage collection",
    said_by_group=WHILE,
    meaning=LATE + "runs Python's garbage collector.",
    found="Ranges and frames of the collector on that thread.",
    remedy="After the start `gc.collect()`, `gc.freeze()` and `gc.disable()`; then `gc.collect(1)` every "
    "few hundred steps, in the same step on all ranks.",
    order=40,
    verdict="Held up by garbage collection",
    makes_late="its garbage collection makes",
    spent="of garbage collection",
    loss=Loss(
        "garbage-collection-inside-step",
        "while Python collects garbage",
        0.01,
        remedies=("gc-freeze",),
        edit="host:garbage-collection=0ms",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("range", "operator", "frame"),
            ("Python GC",),
            "PyTorch since late 2025, with stacks and `_ExperimentalConfig(record_python_gc_info=True)`",
            "Python GC",
            also=r"^Python GC$",
        ),
        CausePattern(
            ("frame",),
            ("<built-in",),
            "Python: gc.collect",
            "<built-in function collect>",
            also=r"^<built-in (?:function collect>|method collect of module object)",
        ),
        CausePattern(
            ("range",),
            ("gc", "garbage"),
            "ranges that name their work",
            "gc.collect",
            also=r"^gc$|\bgc\.collect\b|(?i:garbage[ _-]collect)",
        ),
    ),
)
