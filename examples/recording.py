"""Records a few steps of a training loop with torch.profiler, and leaves out where it was recorded."""

import gzip
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

WARM_UP = 3  # the first steps build caches and buckets, and start the profiler: they are not typical
RECORDED = 4
NUM_STEPS = WARM_UP + RECORDED

# Lines of the trace that name the machine, the job or a path; nothing that is measured depends on them.
_PRIVATE = re.compile(
    r'^ *"(host_name|trace_id|group_trace_id|PT_PROFILER_\w+)": .*,\n|,\s*"traceName": "[^"]*"', re.MULTILINE
)


@contextmanager
def recording(folder: Path, rank: int = 0) -> Iterator[profile]:
    """Record steps 3 to 6 of the loop inside, which calls `step()` NUM_STEPS times, to `rank-N.json.gz`."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=WARM_UP - 1, warmup=1, active=RECORDED, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda recorded: _export(recorded, folder / f"rank-{rank}.json.gz"),
    ) as profiler:
        yield profiler


def _export(recorded: profile, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        plain = Path(place) / "trace.json"
        recorded.export_chrome_trace(str(plain))
        text = _PRIVATE.sub("", plain.read_text())
    # A fixed time in the gzip header, so that the same trace is the same file.
    with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text.encode())
