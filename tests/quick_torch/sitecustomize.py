"""What each Python that a test starts runs first: torch is imported without what a small job does not need.

Torch loads its compiler for the first optimizer, profiler or DDP, even where nothing is compiled, and for
itself what that asks of each operator's shapes. Without them, and without looking for garbage in what imports
leave, a job is over in a third of the processor time, and does and records the same. A job that compiles is
started with `COMPILER` in its environment.
"""

import atexit
import gc
import os
import sys

ModuleSpec = type(os.__spec__)  # importing it, or `typing`, takes longer than all else here


def nothing(*_, **__): ...


def as_it_is(function=None, *_, **__):
    return function or as_it_is


nothing.cache_clear = nothing
COMPILER = {
    "torch._dynamo": {"disable": as_it_is, "graph_break": nothing},
    "torch._dynamo.utils": {"get_optimize_ddp_mode": nothing},
    "torch._dynamo.eval_frame": {"OptimizedModule": type("OptimizedModule", (), {})},
    "torch._dynamo.trace_rules": {
        "LEGACY_MOD_INLINELIST": set(),
        "get_legacy_mod_inlinelist": nothing,
        "clear_lru_cache": nothing,
    },
    "torch._inductor": {},
    "torch._inductor.config": {"triton": type("triton", (), {"cudagraphs": False})},
}
BEGINS, ENDS = "torch._utils", "torch._meta_registrations"


class Import:
    """Sees torch's import begin and nearly end, by what it asks for, and leaves the shapes empty."""

    def find_spec(self, name, *_):
        if name == BEGINS and gc.isenabled():
            gc.disable()
            atexit.register(gc.freeze)  # or Python would look through all of it where it ends
        elif name == ENDS:
            gc.freeze()
            gc.enable()
            return None if "COMPILER" in os.environ else ModuleSpec(name, self)
        return None

    create_module = exec_module = nothing


sys.meta_path.insert(0, Import())
for name, holds in ({} if "COMPILER" in os.environ else COMPILER).items():
    module = sys.modules[name] = type(sys)(name)
    vars(module).update(holds)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
