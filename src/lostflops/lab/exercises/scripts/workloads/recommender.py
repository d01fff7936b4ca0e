# pyright: basic
"""A recommender: features, candidates and ranking in processes of their own, which pass requests on.

python -m lostflops.lab.exercises.scripts.workloads.recommender --index

Requests of random users arrive at a fixed rate. Each stage does its work and takes a fixed time besides, so
that the law of queues can be checked on a machine of any speed.
"""

from __future__ import annotations

import multiprocessing as mp
import random
import time
from typing import Any

import numpy as np

from lostflops.lab.exercises.scripts.workloads.said import parser, say

USERS, ITEMS, WIDTH, KEPT = 2_000, 4_000, 32, 50
STAGES = ("features", "candidates", "ranking")


def worker(stage: str, ms: float, source: Any, target: Any, ready: Any) -> None:
    """Takes requests until there is none, and notes when each came, began and was done."""
    numbers = np.random.default_rng(0)
    users, items = numbers.standard_normal((USERS, WIDTH)), numbers.standard_normal((ITEMS, WIDTH))
    first, second = numbers.standard_normal((2 * WIDTH, 32)), numbers.standard_normal(32)

    def work(request: dict[str, Any]) -> None:
        if stage == "features":
            request["features"] = users[request["user"]]
        elif stage == "candidates":
            request["candidates"] = np.argsort(items @ request["features"])[-KEPT:]
        else:
            chosen = items[request["candidates"]]
            pairs = np.hstack([np.broadcast_to(request["features"], chosen.shape), chosen])
            best = np.argsort(np.maximum(pairs @ first, 0) @ second)[-5:]
            request["ranked"] = request["candidates"][best].tolist()

    work({"user": 0, "features": np.zeros(WIDTH), "candidates": np.arange(KEPT)})
    ready.release()
    while (request := source.get()) is not None:
        began = time.monotonic()
        work(request)
        time.sleep(max(0.0, ms / 1000 - (time.monotonic() - began)))
        request["times"].append((request.pop("sent"), began, time.monotonic()))
        request["sent"] = time.monotonic()
        target.put(request)
    target.put(None)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--requests", type=int, default=120)
    made.add_argument("--every-ms", type=float, default=25.0, help="between two requests")
    made.add_argument("--stage-ms", default="5,30,15", help="of features, candidates, ranking")
    made.add_argument("--index", action="store_true", help="an index finds candidates in a third of the time")
    given = made.parse_args()
    times = [float(word) for word in given.stage_ms.split(",")]
    times[1] /= 3 if given.index else 1
    context = mp.get_context("spawn")
    queues, ready = [context.Queue() for _ in range(4)], context.Semaphore(0)
    processes = [
        context.Process(target=worker, args=(stage, ms, queues[n], queues[n + 1], ready), daemon=True)
        for n, (stage, ms) in enumerate(zip(STAGES, times, strict=True))
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    chosen = random.Random(0)
    begin = time.monotonic()
    for number in range(given.requests):
        due = begin + number * given.every_ms / 1000
        time.sleep(max(0.0, due - time.monotonic()))
        # A request that is late counts from when it was due: else a slow sender would hide a slow service.
        queues[0].put({"user": chosen.randrange(USERS), "number": number, "sent": due, "times": []})
    queues[0].put(None)
    requests = []
    while (request := queues[-1].get()) is not None:
        requests.append(request)
    for process in processes:
        process.join()
    latencies = {
        stage: {
            "waited": [1000 * (r["times"][n][1] - r["times"][n][0]) for r in requests],
            "worked": [1000 * (r["times"][n][2] - r["times"][n][1]) for r in requests],
        }
        for n, stage in enumerate(STAGES)
    }
    whole = [1000 * (r["times"][-1][2] - r["times"][0][0]) for r in requests]
    ranked = {r["number"]: r["ranked"] for r in requests}
    say(
        given,
        {
            "stages": latencies, "whole": whole, "stage_ms": dict(zip(STAGES, times, strict=True)),
            "ranked": [ranked[n] for n in sorted(ranked)],
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
