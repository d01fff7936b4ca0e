"""What Python runs when it starts with this folder on PYTHONPATH: `lostflops record` put it there.

It arms hooks for PyTorch and does nothing else. Any Python may come by here: this file stays readable for old
ones.
"""

import os
import sys


def _chain():
    """Run the sitecustomize that this one hides, as if this one were not there."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None or os.path.dirname(os.path.abspath(spec.origin or "")) == here:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _arm():
    if sys.version_info >= (3, 10) and not os.environ.get("LOSTFLOPS_OFF"):
        try:
            import lostflops_recorder  # pyright: ignore[reportMissingImports]

            lostflops_recorder.arm()  # pyright: ignore[reportUnknownMemberType]
        except Exception:  # the job goes on without us
            pass


if sys.version_info >= (3, 10):
    try:
        _chain()
    finally:
        _arm()
