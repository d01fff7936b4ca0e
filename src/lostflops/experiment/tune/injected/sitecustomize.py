"""What Python runs when it starts with this folder on PYTHONPATH: `lostflops tune` put it there.

It lets other files of this name run as if it were not there, then arms the changes and does nothing else. Any
Python may come by here: this file stays readable for old ones.
"""

import os
import sys


def _chain(run: "set[str]") -> None:
    """Run the next sitecustomize on the path that has not run yet.

    The recorder's looks for others on the whole path and so finds this one again: it goes on from there.
    """
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [path for path in sys.path if os.path.abspath(path or os.curdir) not in run]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    run.add(os.path.dirname(os.path.abspath(spec.origin or "")))
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _arm(here: str) -> None:
    if sys.version_info >= (3, 10) and not os.environ.get("LOSTFLOPS_OFF"):
        try:
            import lostflops_tuner  # pyright: ignore[reportMissingImports]

            lostflops_tuner.arm(here)  # pyright: ignore[reportUnknownMemberType]
        except Exception:  # the job goes on without us
            pass


if sys.version_info >= (3, 10):
    _here = os.path.dirname(os.path.abspath(__file__))
    _run = getattr(sys, "_lostflops_tuner", None)  # the folders whose sitecustomize has run, by then
    _first = _run is None
    if _run is None:
        _run = {_here}
        sys._lostflops_tuner = _run  # pyright: ignore[reportAttributeAccessIssue]
    try:
        _chain(_run)
    finally:
        if _first:
            _arm(_here)
