"""Records a training job from inside: copied beside the recording and run in every Python of the job.

Standard library only, Python 3.10 and later, no import of lostflops: the job's environment need not have it.
Everything here fails open. A fault of ours ends the recording of this process and leaves one line in our log;
the job's output, exit status and random numbers are never touched.
"""

from __future__ import annotations

import os

from . import imports, log, on_demand, run_folder

# Which function of `steps.hooks` is called when a module has executed.
HOOKS = {
    "torch.autograd": "backward",
    "torch.optim.optimizer": "optimizer",
    "torch.amp.grad_scaler": "loss_scaler",
    "torch.utils.data.dataloader": "dataloader",
    "torch.autograd.profiler": "profiler",
    "torch.serialization": "saving",
    "torch.distributed.checkpoint.state_dict_saver": "saving",
    "safetensors.torch": "safetensors",
    "deepspeed.runtime.engine": "deepspeed",
    "transformers.trainer": "trainer",
    "pytorch_lightning.loops.optimization.automatic": "lightning",
    "lightning.pytorch.loops.optimization.automatic": "lightning",
    "torch.distributed.elastic.multiprocessing.errors": "launching",
    "torch.multiprocessing.spawn": "launching",
}

_armed_in = 0


def arm() -> None:
    """Wait for PyTorch to be imported. Cheap: nothing but this package is loaded before that."""
    global _armed_in
    if os.getpid() == _armed_in:
        return
    _armed_in = os.getpid()
    # Without it Kineto prints lines of its own for every window.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    log.mark(run_folder.SEEN_PYTHON)
    on_demand.arm()
    if os.path.exists(os.path.join(log.BOOT, run_folder.NSYS)):
        # The compiler is told to skip what is loaded by then.
        from .windows import nsys, nsys_window  # noqa: F401 # pyright: ignore[reportUnusedImport]

        try:
            nsys.supervise()
        except Exception as error:
            log.fault("nsys", error)
    waited = {name: [f"steps.hooks.{hook}"] for name, hook in HOOKS.items()}
    if os.path.exists(os.path.join(log.BOOT, run_folder.ANNOTATIONS)):
        from .marks import annotated

        for name in annotated.modules():
            waited.setdefault(name, []).append("marks.annotated.executed")
    if os.path.exists(os.path.join(log.BOOT, run_folder.STEP_ON)):
        from .steps import stepping

        for name in stepping.modules():
            waited.setdefault(name, []).append("steps.stepping.executed")
    if log.IN_POD and os.environ.get("LOSTFLOPS_COLLECTOR"):
        waited.setdefault("torch.optim.optimizer", []).append("copying.begin")
    imports.arm(waited)
