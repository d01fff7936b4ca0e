"""Memory of large tensors that a CPU gives back to Linux between operators, and gets again page by page."""

from __future__ import annotations

from dataclasses import replace

from lostflops.causes.names import bytes_of
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import milliseconds

from .named import BY_NAME, MOSTLY, NEARLY_ALL, RUNS

KEEP = (
    "Have freed memory kept for the next tensors: with glibc, set `MALLOC_MMAP_MAX_=0` and "
    "`MALLOC_TRIM_THRESHOLD_=17179869184` in the environment of the job (it then keeps up to 16 GiB), or "
    "load an allocator that keeps it. Fewer temporaries help as well: operators in place, an optimizer with "
    "`fused=True`."
)
SLOWER = (
    "freed memory goes back to Linux, and the next operator that needs some waits for each page: operators "
    "are slower for it, too"
)
INFERRED = "how memory is allocated was not recorded: this follows from the size of the tensors"


def gives_memory_back(page: PageFindings) -> None:
    """Tell of long pauses in PyTorch's own code beside large tensors that no Python runs in them."""
    given, other = page.given, page.of(BY_NAME)
    inside = given.given_back
    cost = int(inside["ns"].sum()) // max(1, given.num_steps)
    if other is None or not given.on_host or cost <= MOSTLY * other.size:
        return
    mostly = "" if cost >= NEARLY_ALL * other.size else "mostly "
    fact = (
        f"{milliseconds(cost)} of it in pauses of a millisecond and more inside PyTorch; "
        f"tensors take up to {bytes_of(int(inside['bytes'].max()))}"  # pyright: ignore[reportArgumentType]
    )
    page.replace(
        other,
        replace(
            other.without_bound(),  # operators that write to new memory wait for its pages as well
            claim=RUNS.sub(f"{mostly}frees memory of large tensors", other.claim),
            evidence=(fact, SLOWER, *other.evidence),
            next=KEEP,
            doubt=other.doubt or INFERRED,
            edit="",
        ),
    )
