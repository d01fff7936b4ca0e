"""What ends a step of `gpu_job.py`, whose jobs each have an optimizer of their own."""


def ended() -> None: ...
