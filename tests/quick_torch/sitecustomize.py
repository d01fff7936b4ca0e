"""What each Python that a test starts runs first: torch is imported without what a small job does not need.

Torch loads its compiler for the first optimizer, profiler or DDP, even where nothing is compiled, and for
itself what that asks of each operator's shapes. Without them, and without looking for garbage in what imports
leave, a job is over in a third of the processor time, and does and records the same. They come when anything
else of them is asked for, and where `COMPILER` is in the environment they are there from the beginning.
"""

import atexit
import gc
import os
import sys
import time

Module, ModuleSpec = type(sys), type(os.__spec__)  # importing `typing` takes longer than all else here


def nothing(*_, **__): ...


def as_it_is(function=None, *_, **__):
    return function or as_it_is


class OptimizedModule: ...


nothing.cache_clear = nothing
OF_THE_COMPILER = {
    "torch._dynamo": {
        "disable": as_it_is,
        "assume_constant_result": as_it_is,
        "graph_break": nothing,
        "OptimizedModule": OptimizedModule,
    },
    "torch._dynamo.eval_frame": {"OptimizedModule": OptimizedModule},
    "torch._dynamo.utils": {"get_optimize_ddp_mode": nothing, "warn_once": nothing},
    "torch._dynamo.trace_rules": {
        "LEGACY_MOD_INLINELIST": set(),
        "get_legacy_mod_inlinelist": nothing,
        "clear_lru_cache": nothing,
    },
    "torch._inductor": {},
    "torch.export": {},
    "torch._inductor.config": {"triton": type("triton", (), {"cudagraphs": False})},
}
BEGINS, SHAPES = "torch._utils", "torch._meta_registrations"


class StandIn(Module):
    """A module of the compiler, until something is asked of it that is not here."""

    def __init__(self, name, **holds):
        super().__init__(name)
        vars(self).update(holds)

    def __getattr__(self, name):
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules[self.__name__] is self:
            for one in (SHAPES, *OF_THE_COMPILER):
                sys.modules.pop(one)
            Import.whole = True
            __import__(SHAPES)
            __import__(self.__name__)
        return getattr(sys.modules[self.__name__], name)


def stand_in():
    for name, holds in OF_THE_COMPILER.items():
        module = sys.modules[name] = StandIn(name, **holds)
        package, _, last = name.rpartition(".")
        vars(sys.modules.get(package, module))[last] = module


class Import:
    """Sees torch's import begin and nearly end, by what it asks for, and leaves the shapes empty."""

    whole = "COMPILER" in os.environ
    collects = False  # whether garbage was looked for before

    def find_spec(self, name, *_):
        if name == BEGINS:
            Import.collects = gc.isenabled()
            gc.disable()
            if not self.whole:
                stand_in()
        elif name == SHAPES and self.collects:
            gc.freeze()
            gc.enable()
        if (name == SHAPES and not self.whole) or name in sys.modules:
            return ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        return sys.modules.get(spec.name)  # there is one when its package has brought it meanwhile

    def exec_module(self, module):
        from torch import _C

        if module.__name__ == SHAPES and hasattr(_C, "_set_generator_metaclass"):  # the shapes bring it
            from torch._opaque_base import OpaqueBaseMeta

            _C._set_generator_metaclass(OpaqueBaseMeta)


def end_late():
    if "torch" in sys.modules:
        time.sleep(0.3)


sys.meta_path.insert(0, Import())
# A thread of gloo lets go of what it holds of Python a moment after the last collective, and where Python has
# ended by then, it aborts the rank (torch 2.13, one rank in ten).
if {"RANK", "SLURM_PROCID"} & os.environ.keys():
    atexit.register(end_late)
