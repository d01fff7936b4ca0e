"""Several chunks of layers a stage, visited in turn: the pipeline fills and drains in a part of the time.

As Megatron does it: microbatches go in groups of as many as there are stages through one chunk after another.
"""

from __future__ import annotations


def order(stages: int, stage: int, microbatches: int, chunks: int) -> list[tuple[str, int, int]]:
    """Warm up, alternate, drain, in passes of a microbatch through one chunk."""
    passes = microbatches * chunks
    ahead = min(passes, 2 * (stages - stage - 1) + (chunks - 1) * stages)

    def forward(k: int) -> tuple[str, int, int]:
        group, within = divmod(k, stages * chunks)
        return "F", within // stages, group * stages + within % stages

    def backward(k: int) -> tuple[str, int, int]:
        _, chunk, microbatch = forward(k)
        return "B", chunks - 1 - chunk, microbatch

    found = [forward(k) for k in range(ahead)]
    for k in range(passes - ahead):
        found += [forward(ahead + k), backward(k)]
    return found + [backward(k) for k in range(passes - ahead, passes)]
