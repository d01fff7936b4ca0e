"""g3: states that do not fit on the GPU, in unified memory: LoRA against full fine-tuning."""

from __future__ import annotations

from lostflops.errors import CannotAnswer
from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted
from lostflops.lab.exercises.offered.lora import TRAINED

PARAMETERS = 803_968  # of llama-tiny
# fp32: a weight, its gradient and two moments of Adam. What is frozen is its weight alone.
WHOLE, FROZEN = 16, 4
# llama-7b with fp32 states, LoRA of rank 16 on q and v beside weights in bf16.
OF_7B, OF_ITS_LORA = 6_738_415_616, 8_388_608
FULL_GB, LORA_GB = WHOLE * OF_7B / 1e9, (2 * OF_7B + WHOLE * OF_ITS_LORA) / 1e9
MEMORIES = {"96 GB of a GH200": 96.0, "139 GiB of an H200": 139 * 1.073741824}


def _held(seen: Observed) -> int:
    return sum(seen.truth["states"].values())


def _moved(seen: Observed) -> tuple[str, bool]:
    """What the recording says of pages that move: nothing, where it is torch's."""
    try:
        rows = seen.ask("managed_memory_faults")
    except CannotAnswer as error:
        return error.message, True
    return f"{rows.height} rows", False


def _check(full: Observed, lora: Observed) -> list[Check]:
    said, unknown = _moved(full)
    managed = full.truth["managed"]
    over = [f"{FULL_GB - size:+.1f} GB beside the {name}" for name, size in MEMORIES.items()]
    return [
        counted(
            f"bytes of states, all weights trained: {WHOLE} per parameter", WHOLE * PARAMETERS, _held(full)
        ),
        counted(
            f"with LoRA: {FROZEN} per frozen parameter, {WHOLE} per trained one",
            FROZEN * PARAMETERS + WHOLE * TRAINED,
            _held(lora),
        ),
        Check(
            f"a 7B model has {FULL_GB:.1f} GB of states, {LORA_GB:.1f} GB with LoRA (formula): only "
            "that fits into the first of these memories",
            "; ".join(over),
            FULL_GB > MEMORIES["96 GB of a GH200"] > LORA_GB,
        ),
        Check(
            "cannot tell from this recording which pages moved: torch's profiler does not record it",
            said,
            unknown,
        ),
        Check(
            "on a GPU all of it lies in unified memory; elsewhere nothing can move: not graded",
            "no GPU" if managed is None else str(managed),
            passed=True,
        ),
    ]


EXERCISE = Exercise(
    name="g3",
    title="Unified memory: LoRA against full fine-tuning",
    question="The states of a job are larger than the GPU's memory and spill into the host's: what shows it?",
    see="bytes of weights, gradients and moments; under nsys, page faults and migrations",
    expected=(
        f"{WHOLE} bytes per trained parameter, {FROZEN} per frozen one: LoRA fits where full training spills",
        (
            "torch's profiler records no unified memory: `nsys profile --cuda-um-gpu-page-faults=true "
            "--cuda-um-cpu-page-faults=true` does, and `lostflops why` reads its export"
        ),
        "on a GH200 migrations were 1.1 % of memory operations with LoRA, 9.8 % in full (published)",
    ),
    fix="LoRA; or lostflops.optimize.offload and stream_frozen, which copy before a kernel waits",
    words=("--managed", "--seq", "32"),
    sides=(ExerciseSide("all weights are trained"), ExerciseSide("LoRA", ("--lora",))),
    check=_check,
)
