# pyright: basic
"""Three services: a gateway spreads requests over replicas of a model, whose answers a third one collects.

python -m lostflops.lab.exercises.scripts.workloads.services --drift 2

Each replica writes the time of its requests as a rank writes its steps, so that `lostflops watch` reads them.
With `--drift` that replica becomes slower and slower, as one does whose memory leaks or whose cache fills up.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from lostflops import run_folder
from lostflops.lab.exercises.scripts.workloads.said import parser, say

WIDTH = 64


class RequestLog:
    """A replica's requests as the step log of a rank."""

    def __init__(self, run: Path, replica: int, replicas: int) -> None:
        place = run / run_folder.node(0)
        place.mkdir(parents=True, exist_ok=True)
        name = run_folder.step_log(run_folder.log_name(replica, 0))
        self.file = (place / name).open("w", buffering=1)
        self.add(
            kind=run_folder.RANK, format=run_folder.FORMAT, rank=replica, local=replica, world=replicas,
            attempt=0, source="environment", pid=os.getpid(), host="localhost",
            monotonic=time.monotonic_ns(), wall=time.time_ns(),
        )  # fmt: skip

    def add(self, **fields: Any) -> None:
        self.file.write(json.dumps(fields) + "\n")

    def request(self, number: int, end: int, duration: int) -> None:
        self.add(step=number, end=end, duration=duration, own=0, micro_steps=1, window=0)


def model(given: Any, replica: int, source: Any, target: Any, run: Path) -> None:
    """Answers requests in a fixed time, which grows from request to request where it drifts."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH))
    log = RequestLog(run, replica, given.replicas)
    number = 0
    target.put(None)  # it is there
    while (request := source.get()) is not None:
        began = time.monotonic_ns()
        beyond = max(0, number - given.since) if replica == given.drift else 0
        ms = given.ms * min(1 + given.grows * beyond, 1 + given.most)
        request["answer"] = float((np.full(WIDTH, request["value"]) @ weights).sum())
        # Of a short sleep a machine that is busy makes a longer one: the rest is waited for actively.
        due = began + int(1e6 * ms)
        time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9 - 0.001))
        while time.monotonic_ns() < due:
            pass
        end = time.monotonic_ns()
        log.request(number, end, end - began)
        request |= {"replica": replica, "ms": (end - began) / 1e6}
        target.put(request)
        number += 1
    log.add(kind=run_folder.END, steps=number, lines_lost=0)
    target.put(None)


def gateway(given: Any, source: Any, targets: list[Any]) -> None:
    """Hands requests out in turn."""
    number = 0
    while (request := source.get()) is not None:
        targets[number % len(targets)].put(request)
        number += 1
    for target in targets:
        target.put(None)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--replicas", type=int, default=4)
    made.add_argument("--requests", type=int, default=200, help="of each replica")
    made.add_argument("--ms", type=float, default=10.0, help="of a request in the model")
    made.add_argument("--drift", type=int, default=-1, help="this replica becomes slower; -1: none does")
    made.add_argument("--since", type=int, default=110, help="from this of its requests on")
    made.add_argument("--grows", type=float, default=0.01, help="per request, as a share")
    made.add_argument("--most", type=float, default=0.5)
    given = made.parse_args()
    run = (given.truth.parent if given.truth else Path("services-run")) / "recording"
    context = mp.get_context("spawn")
    front, answers = context.Queue(), context.Queue()
    sources = [context.Queue() for _ in range(given.replicas)]
    processes = [
        context.Process(target=model, args=(given, n, sources[n], answers, run), daemon=True)
        for n in range(given.replicas)
    ]
    processes.append(context.Process(target=gateway, args=(given, front, sources), daemon=True))
    for process in processes:
        process.start()
    for _ in range(given.replicas):
        answers.get()
    chosen = random.Random(0)
    begin = time.monotonic()
    every = 1.7 * given.ms / given.replicas / 1000
    for number in range(given.requests * given.replicas):
        time.sleep(max(0.0, begin + number * every - time.monotonic()))
        front.put({"number": number, "value": chosen.random()})
    front.put(None)
    served, left = [], given.replicas
    while left:
        request = answers.get()
        left -= request is None
        if request is not None:
            served.append(request)
    for process in processes:
        process.join()
    served.sort(key=lambda request: request["number"])
    say(
        given,
        {
            "run": str(run),
            "answers": [request["answer"] for request in served],
            "ms": {n: [r["ms"] for r in served if r["replica"] == n] for n in range(given.replicas)},
            "replicas": given.replicas, "drift": given.drift, "since": given.since,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
