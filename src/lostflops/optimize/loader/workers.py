"""The number of workers of a `DataLoader`, derived from how long a batch and a step take, then measured.

    setting = optimize.tune_loader(loader, step_seconds=0.030)
    loader = setting.apply(loader)

The theory. Without workers a step waits for its batch: t_step + t_load. W workers make batches beside each
other and beside the step, and the training process takes each of them over:
max(t_step + t_receive, t_load / W). So W* = ceil(t_load / (t_step + t_receive)) workers hide loading, and
more hide nothing more. All three are measured once, with one worker; then W*, its neighbours and 0 run for a
few batches each, in turns, and what was measured decides.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lostflops.optimize.amounts import written
from lostflops.optimize.device import host_share
from lostflops.optimize.loader.batches import (
    Batches,
    SampleOrder,
    is_its_own_iterator,
    knows_order,
    made,
    plain,
    random_numbers_kept,
)
from lostflops.optimize.loader.load_time import (
    WORTH,
    LoadTime,
    load_time,
    ms,
    predicted_seconds,
    workers_wanted,
)
from lostflops.optimize.loader.order_elsewhere import OrderElsewhere
from lostflops.optimize.loader.probe import UNSEEN, Failed, Probe, Seen, WorkerStart, as_it_is
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import Report

ROUNDS = 3  # how often each candidate is measured
CLOSE = 0.05  # fewer workers are preferred when they are no slower than this share
UNEVEN = 0.5  # standard deviation of a batch's time, as a share of its mean, from which on times vary
MOST_MEMORY = 0.8  # of the host memory that is left, for workers and what they hold ready
HELD_READY = 2  # batches per worker: torch's own default
HELD_READY_UNEVEN = 4
LEAST_PROBED, MOST_PROBED = 8, 24  # batches
LONG = 0.3  # seconds for a batch that a worker is not waited for
PROBING = 0.2  # share of the time given
LEAST_TIMED, LEAST_TIMED_SECONDS = 16, 0.1  # batches of a run, if there is time; as many as take so long


@dataclass(frozen=True)
class Candidate:
    """A number of workers: seconds per step by the formula, and as measured (median, lowest, highest)."""

    workers: int
    predicted_seconds: float
    measured_seconds: float | None = None
    lowest_seconds: float | None = None
    highest_seconds: float | None = None
    start_seconds: float | None = None  # from asking for an iterator to its first batch
    runs: int = 0


@dataclass(frozen=True)
class LoaderSetting(Report):
    """Keyword arguments for `DataLoader`, and the evidence for them: the remedy and its report in one.

    What it is applied to stays as it is: to undo it is to go on with the loader that was given.
    """

    document = "loader setting"
    derived = ("verified",)

    arguments: dict[str, Any]
    step_seconds: float
    load: LoadTime
    candidates: tuple[Candidate, ...]
    workers_wanted: int  # by the formula
    workers_possible: int  # by cores, memory, batches and the dataset
    cores: int
    took_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        return self.arguments["num_workers"]

    @property
    def verified(self) -> bool:
        """Whether the setting was measured, and not only predicted."""
        return any(row.workers == self.workers and row.runs for row in self.candidates)

    def record(self) -> dict[str, Any]:
        """The same as `to_json`."""
        return self.to_json()

    def report(self) -> LoaderSetting:
        return self

    def apply(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """A loader with this setting and the same dataset, sampler, collating and generator.

        The loader that is given stays as it is, also while it is iterated; both draw from the same sampler.
        """
        plain(loader)
        return made(loader, **self.arguments)

    def undo(self) -> None:
        """Nothing is to be taken back: go on with the loader that was given."""

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        load = self.load
        lines = [
            f"DataLoader(..., {said})",
            f"  a batch: {ms(load.batch_seconds)} in a worker (±{load.batch_spread:.0%}, n={load.batches})",
            f"  taking it over: {ms(load.receive_seconds)}; a step: {ms(self.step_seconds)}",
            f"  {self.workers_wanted} workers wanted, {self.workers_possible} possible",
            "  workers   predicted   measured            (ms per step)",
        ]
        for row in self.candidates:
            seen = "not measured"
            if row.measured_seconds is not None and row.lowest_seconds is not None:
                low, high = 1000 * row.lowest_seconds, 1000 * (row.highest_seconds or 0)
                seen = f"{1000 * row.measured_seconds:8.1f}  ({low:.1f} to {high:.1f}, {row.runs} runs)"
            chosen = "  <-" if row.workers == self.workers else ""
            lines.append(f"  {row.workers:7}   {1000 * row.predicted_seconds:9.1f}   {seen}{chosen}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def tune_loader(
    loader: DataLoader[Any],
    step: Callable[[Any], Any] | None = None,
    *,
    step_seconds: float | None = None,
    cores: int | None = None,
    seconds: float = 30.0,
    keep_order: bool = True,
) -> LoaderSetting:
    """The workers, pinning and prefetching that hide loading behind steps of `step_seconds`.

    Give either `step_seconds` or `step(batch)`, which is then called for some hundred batches: it should not
    update weights. `cores`: for the workers of this rank; by default its share of those that the process may
    run on. Takes about `seconds` at most; `took_seconds` says how long it was.

    The samples and their order stay as they are. `keep_order=False` also allows what changes it: batches out
    of order where their times vary, workers that live on after an epoch (torch then draws one random
    number less per epoch, so later epochs are shuffled differently), several workers for an iterable dataset,
    and another number of them where the dataset, `collate_fn` or sampler has a state that batches depend on.
    Workers ask for batches ahead, which three loops may see: one that draws random numbers between
    `iter(loader)` and its first batch, one that changes during an epoch what the sampler reads, and one that
    breaks off where no more than `num_workers` times `prefetch_factor` batches of an epoch are left, with a
    sampler that has random numbers of its own.

    The loader is not iterated: a copy of its sampler is asked in another process, and Python's, NumPy's and
    torch's random numbers are afterwards as before. A dataset or `collate_fn` that making a batch changes is
    read in workers only, and so is one whose first batch is another when it is made again from the same
    random numbers.
    Refuses a loader whose class is not `DataLoader` itself, and a dataset that fails, hangs, cannot be sent
    to a worker, or whose samples would be used up.
    """
    began = time.perf_counter()
    plain(loader)
    if (step is None) == (step_seconds is None):
        raise Refused("how long a step takes is not known", "give either step=... or step_seconds=...")
    if step_seconds is not None and not (0 <= step_seconds < math.inf):
        raise Refused(f"a step cannot take {step_seconds} s", "give step_seconds in seconds, 0 or more")
    if cores is not None and cores < 1:
        raise Refused(f"there cannot be {cores} cores", "give cores=1 or more, or leave it out")
    if not (0 < seconds < math.inf):
        raise Refused(f"nothing can be measured in {seconds} s", "give seconds=30 or so")
    with random_numbers_kept(loader):
        tuning = _Tuning(loader, began, seconds, cores, keep_order)
        with nullcontext() if tuning.order is None else closing(tuning.order):
            return tuning.setting(step, step_seconds)


class _Tuning:
    """One call of `tune_loader`."""

    def __init__(
        self, loader: Any, began: float, seconds: float, cores: int | None, keep_order: bool
    ) -> None:
        self.loader, self.began, self.seconds, self.keep_order = loader, began, seconds, keep_order
        self.cores = cores or host_share.cores()
        iterable = isinstance(loader.dataset, IterableDataset)
        self.order = None if iterable else OrderElsewhere(SampleOrder(loader), seconds)
        self.length = self.order.length if self.order else None  # batches of an epoch
        self.start_seconds = 0.3  # of a worker
        self.uneven = self.pin = False
        self.reads_here = True  # making a batch changes nothing that the next one may depend on
        self.stays = ""  # why the number of workers stays as it is
        self.ready = HELD_READY  # batches that a worker makes ahead
        self.notes: list[str] = []

    def left(self) -> float:
        return self.seconds - (time.perf_counter() - self.began)

    def setting(self, step: Callable[[Any], Any] | None, step_seconds: float | None) -> LoaderSetting:
        seen = self._probed()
        most = self._most_workers(seen)
        self.reads_here = not any(one.changed for one in seen)
        if self.keep_order:
            self.stays = self._depends_on_workers(seen)
        self.pin = self.loader.pin_memory
        if _has_accelerator():
            self.pin = not any(one.devices - {"cpu"} for one in seen)
        load = load_time(seen, self._receive_seconds(seen) if most else 0.0)
        self.uneven = load.batch_spread > UNEVEN
        if step_seconds is None:
            assert step is not None
            step_seconds = self._step_seconds(step, most)
        else:
            step = functools.partial(_wait, step_seconds)
        wanted = workers_wanted(step_seconds, load.batch_seconds, load.receive_seconds)
        floor = 1 if self._stays_persistent() and most else 0
        derived = self.loader.num_workers if self.stays else max(min(wanted, most), floor)
        self._look_ahead(derived + 1, load)
        nearby = (derived,) if self.stays else (derived, 0, derived - 1, derived + 1)
        tried = [n for n in dict.fromkeys(nearby) if self.stays or floor <= n <= most]
        measured = self._measured(tried, step, step_seconds, load)
        chosen = self._chosen(measured, derived)
        self._say(seen, load, step_seconds, measured, chosen, most)
        took = time.perf_counter() - self.began
        return LoaderSetting(
            self._arguments(chosen), step_seconds, load, measured, wanted, most, self.cores, took,
            tuple(self.notes),
        )  # fmt: skip

    def _probed(self) -> list[Seen]:
        """Batches as one worker makes them. Raises Refused where it cannot."""
        loader = self.loader
        if self.order is None and is_its_own_iterator(loader.dataset):
            raise Refused(
                f"a {type(loader.dataset).__name__} is its own iterator: measuring would take its samples",
                "have its __iter__ begin anew, or give the number of workers yourself",
            )
        batches = self.order.next(MOST_PROBED) if self.order else [None] * MOST_PROBED
        size = None if loader.batch_sampler is None else loader.batch_size or 1
        probe = Probe(loader.dataset, batches, loader.collate_fn, size)
        until = 0.0
        seen: list[Seen] = []
        worker = DataLoader(
            cast("Any", probe), batch_size=None, num_workers=1, collate_fn=as_it_is,
            timeout=max(self.left(), 0.1),
            worker_init_fn=WorkerStart(loader.dataset, loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context, generator=torch.Generator(),
            prefetch_factor=1,
        )  # fmt: skip
        began = time.perf_counter()
        with closing(Batches(worker, len(batches), self.seconds)) as found:
            for one in found:
                if isinstance(one, Failed):
                    raise Refused(
                        f"the dataset failed at {one.where}: {one.error}", "mend or leave out what fails"
                    )
                if one is None:
                    self.length = len(seen)
                    break
                if not seen:
                    self.start_seconds = time.perf_counter() - began - one.seconds - one.again_seconds
                    until = time.perf_counter() + PROBING * self.seconds
                seen.append(one)
                enough = len(seen) >= LEAST_PROBED and time.perf_counter() > until
                if enough or self.left() < self.seconds / 2:
                    break
            if seen and seen[-1].seconds > LONG:
                found.end_at_once()
        if not seen:
            raise Refused("the dataset gives no batch", "give a loader with samples in it")
        if len(seen) < 3:
            return seen
        # The first batch opens files and imports modules, once per worker.
        once, *others = seen
        counted = once.counted if once.counted == UNSEEN else ""
        others[0] = replace(
            others[0], changed=once.changed or others[0].changed, counted=others[0].counted or counted
        )
        return others

    def _depends_on_workers(self, seen: Sequence[Seen]) -> str:
        """Why another number of workers would give other batches, or another order; empty if it would not."""
        now = self.loader.num_workers
        if self.order is not None and self.order.draws:
            return (
                "the sampler draws random numbers for each sample, beside those of the steps: batches that "
                "workers ask for ahead would be others"
            )
        if self.order is not None and self.order.counts:
            return (
                f"{self.order.counts} changes with each batch that is asked for, and workers ask ahead: "
                "after a break, or from its saved state, training would go on at another batch"
            )
        if what := self._counts(seen):
            return f"{what}, so another number of them gives other samples"
        if self.order is None and now > 1 and any(one.asked_which_worker for one in seen):
            return "the samples of an iterable dataset come in the order of its workers"
        return ""

    def _receive_seconds(self, seen: Sequence[Seen]) -> float:
        """Median time to take over a batch that a worker has ready; 0 where that takes too long to see."""
        took: list[float] = []
        slowest = max(one.seconds for one in seen)
        if slowest * 6 > PROBING * self.seconds:
            return 0.0
        with closing(self._batches(1, 4, prefetch_factor=4)) as batches:
            for _ in itertools.islice(batches, 1):
                time.sleep(4 * slowest + 0.02)  # so that the others are ready
            while True:
                began = time.perf_counter()
                if next(batches, None) is None:
                    break
                took.append(time.perf_counter() - began)
        return statistics.median(took) if took else 0.0

    def _step_seconds(self, step: Callable[[Any], Any], most: int) -> float:
        """Median time of a step by itself, on two batches in turn."""
        # What reading changes in the dataset is to change in a worker only.
        with closing(self._batches(0 if self.reads_here or not most else 1, 2)) as found:
            batches = list(found)
        times: list[float] = []
        until = time.perf_counter() + 0.15 * self.seconds
        for n, batch in enumerate(itertools.cycle(batches)):
            given = copy.copy(batch)  # a step may take parts out of a dictionary
            _synchronize()
            began = time.perf_counter()
            step(given)
            _synchronize()
            if n:  # the first one compiles, allocates and warms up
                times.append(time.perf_counter() - began)
            if n > 10 or (len(times) > 2 and time.perf_counter() > until):
                return statistics.median(times)
        raise AssertionError("a cycle ended")

    def _most_workers(self, seen: Sequence[Seen]) -> int:
        """By cores, memory and what the dataset allows; each that binds is said."""
        most = self.cores
        elsewhere = sorted({device for one in seen for device in one.devices} - {"cpu"})
        if elsewhere:
            self.notes.append(
                f"samples lie on {', '.join(elsewhere)}: workers have no business there. "
                "Have the dataset give CPU tensors and move batches in the step"
            )
            return 0
        free = MOST_MEMORY * host_share.memory()
        each = max(one.private_bytes + HELD_READY * one.batch_bytes for one in seen)
        if each * most > free:
            most = int(free // each)
            self.notes.append(
                f"memory allows {most} workers: each takes {written(each)} of its own, "
                f"and {written(free)} is free for them"
            )
        if self.order is not None:
            most = min(most, max(1, self.length or most))
        elif most > 1 and not any(one.asked_which_worker for one in seen):
            most = 1
            self.notes.append(
                "the dataset never asks which worker it is in (torch.utils.data.get_worker_info): with two "
                "workers each sample would come twice, so 1 is the most"
            )
            if self.loader.num_workers > 1:
                self.notes.append(
                    f"as it is now, this loader gives each sample {self.loader.num_workers} times"
                )
        if self.order is None and self.keep_order and most > 1 and self.loader.num_workers < 2:
            most = 1
            self.notes.append(
                "several workers would give the samples of an iterable dataset in another order"
                f"{', and each would drop a last batch' if self.loader.drop_last else ''}: "
                "keep_order=False allows them"
            )
        return most

    def _counts(self, seen: Sequence[Seen]) -> str:
        """What the next batch depends on and a worker has a copy of, if the user's code does not seed it."""
        what = next((one.counted for one in seen if one.counted), "")
        if not what or self.loader.worker_init_fn is not None:
            return ""
        return f"making a batch changes {what}: each worker has a copy, which begins anew in every epoch"

    def _measured(
        self, tried: Sequence[int], step: Callable[[Any], Any], step_seconds: float, load: LoadTime
    ) -> tuple[Candidate, ...]:
        """The candidates, each run for some batches in turns, as far as the time allows."""
        times: dict[int, list[float]] = {workers: [] for workers in tried}
        starts: dict[int, list[float]] = {workers: [] for workers in tried}
        seconds = {
            n: predicted_seconds(n, step_seconds, load.batch_seconds, load.receive_seconds) for n in tried
        }
        for turn in range(ROUNDS):
            for place, workers in enumerate(tried if turn % 2 == 0 else tried[::-1]):
                runs_left = (ROUNDS - turn) * len(tried) - place
                if not workers and not self.reads_here:
                    continue
                known = min(starts[workers], default=self.start_seconds if workers else 0.0)
                before, counted = self._lengths(workers, seconds[workers], self.left() / runs_left - known)
                need = known + (before + counted) * seconds[workers]
                if need > self.left() - load.batch_seconds * (1 if workers else 0):
                    continue
                start, took = self._run(workers, before, counted, step)
                starts[workers].append(start)
                if took is not None:
                    times[workers].append(took)
        rows: list[Candidate] = []
        for workers in sorted(tried):
            row = Candidate(workers, seconds[workers])
            if found := times[workers]:
                row = Candidate(
                    workers, seconds[workers], statistics.median(found), min(found), max(found),
                    statistics.median(starts[workers]), len(found),
                )  # fmt: skip
            rows.append(row)
        return tuple(rows)

    def _lengths(self, workers: int, seconds: float, share: float) -> tuple[int, int]:
        """How many batches to let pass, until what was ready at first is used up, and how many to time."""
        # Workers that began together deliver together: whole rounds of them are timed.
        per_round = max(1, workers)
        before = self.ready * workers or 1
        if self.order is None and self.length is not None:  # it does not begin again
            before = min(before, 1 + self.length // 4)
        fits = int(share / max(seconds, 1e-6)) - before
        enough = max(LEAST_TIMED, math.ceil(LEAST_TIMED_SECONDS / max(seconds, 1e-6)))
        # Fewer would be flattered by what is ready when the machine was busy elsewhere for a moment.
        least = max(2 * per_round, LEAST_TIMED // 2 if workers else 2)
        rounds = min(max(fits // per_round, math.ceil(least / per_round)), math.ceil(enough / per_round))
        return before, rounds * per_round

    def _run(
        self, workers: int, before: int, counted: int, step: Callable[[Any], Any]
    ) -> tuple[float, float | None]:
        """Seconds to the first batch, and seconds per step after `before` of them; None: too few batches."""
        began = time.perf_counter()
        first = since = 0.0
        number = -1
        # A few more than are timed, so that the workers are busy to the end.
        with closing(self._batches(workers, before + counted + workers)) as batches:
            for number, batch in enumerate(batches):
                if not number:
                    first = time.perf_counter() - began
                step(batch)
                if number + 1 == before:
                    _synchronize()
                    since = time.perf_counter()
                if number + 1 == before + counted or self.left() < -1:
                    break
            _synchronize()
            took = time.perf_counter() - since  # without the end of the workers
        done = number + 1 - before
        return first, took / done if done > 0 and done >= counted // 2 else None

    def _batches(self, workers: int, number: int, **more: Any) -> Batches:
        """That many batches, or fewer where there are fewer, through a loader with so many workers."""
        loader = self.loader
        given: dict[str, Any] = {}
        if self.order is not None:
            given["sampler" if loader.batch_sampler is None else "batch_sampler"] = self.order.next(number)
        limit = {"timeout": max(self.left(), 1.0)} if workers else {"timeout": 0}
        arguments = {**self._arguments(workers), **limit, "persistent_workers": False, **more}
        anew = made(loader, generator=torch.Generator(), **given, **arguments)
        return Batches(anew, number, self.seconds)

    def _stays_persistent(self) -> bool:
        return self.keep_order and self.loader.persistent_workers and self.loader.num_workers > 0

    def _look_ahead(self, workers: int, load: LoadTime) -> None:
        """Batches that each worker makes ahead: more of them where batches' times vary and memory allows."""
        if self.stays and self.loader.prefetch_factor:
            self.ready = self.loader.prefetch_factor
            return
        wanted = max(self.loader.prefetch_factor or 0, HELD_READY_UNEVEN if self.uneven else HELD_READY)
        held = workers * (load.worker_bytes + wanted * load.batch_bytes)
        self.ready = wanted if held <= MOST_MEMORY * host_share.memory() else HELD_READY

    def _arguments(self, workers: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {"num_workers": workers, "pin_memory": self.pin}
        if workers:
            lives_on = not self.keep_order and not hasattr(self.loader.dataset, "set_epoch")
            arguments["prefetch_factor"] = self.ready
            arguments["persistent_workers"] = self._stays_persistent() or lives_on
            if not self.keep_order and self.uneven and knows_order():
                arguments["in_order"] = False
        return arguments

    def _chosen(self, rows: Sequence[Candidate], derived: int, starting: bool = True) -> int:
        """The fewest workers that are as good as the best; the derived number where nothing was measured."""
        length = self.length if starting and self.keep_order and not self._stays_persistent() else None

        def cost(row: Candidate) -> float:
            # Workers start anew in each epoch: a short one pays for that.
            anew = (row.start_seconds or 0.0) / length if length and row.workers else 0.0
            return (row.measured_seconds or math.inf) + anew

        measured = [row for row in rows if row.runs]
        if derived not in {row.workers for row in measured}:
            return derived
        best = min(map(cost, measured))
        # No worker at all is simplest: the rest must beat its best run. Of workers the best run says less,
        # because it may have begun with more than usual held ready.
        if any(not row.workers and (row.lowest_seconds or 0) <= best * (1 + CLOSE) for row in measured):
            return 0
        return min(row.workers for row in measured if cost(row) <= best * (1 + CLOSE))

    def _say(
        self, seen: Sequence[Seen], load: LoadTime, step_seconds: float, rows: Sequence[Candidate],
        chosen: int, most: int,
    ) -> None:  # fmt: skip
        """What the user should know beside the numbers."""
        say = self.notes.append
        if isinstance(self.loader.dataset, TensorDataset):
            say("the samples lie in memory: all that a worker could do is copy them once more")
        beside = step_seconds + load.receive_seconds
        if load.batch_seconds < WORTH * beside:
            say(f"loading takes {load.batch_seconds / beside:.1%} of a step: workers have nothing to hide")
        elif chosen == most and chosen * beside < 0.9 * load.batch_seconds:
            say(
                f"loading stays the limit: {chosen} workers make a batch every "
                f"{ms(load.batch_seconds / max(chosen, 1))}, a step takes {ms(step_seconds)}"
            )
            if load.cpu_share < 0.5:
                say(
                    f"loading waits for {1 - load.cpu_share:.0%} of its time (disk, network): more workers "
                    f"than the {self.cores} cores may pay; try cores={2 * self.cores}"
                )
        if chosen > 1 and self.order is None:
            say("with several workers the samples of an iterable dataset come in another order than without")
        if any(one.drew for one in seen) and chosen != self.loader.num_workers:
            say(
                "the dataset draws random numbers: each worker has its own, so another number of workers "
                "gives other augmentations of the same samples"
            )
        if self.uneven and chosen and self.keep_order:
            say(
                f"batches' times vary by {load.batch_spread:.0%}: in_order=False would not wait for the slow "
                "ones; keep_order=False allows it"
            )
        if self.stays:
            say(f"the number of workers stays at {chosen}: {self.stays}; keep_order=False allows others")
        elif not self.reads_here:
            what = next(one.changed for one in seen if one.changed)
            say(
                f"making a batch changes {what}: it was done in workers only, and 0 workers were not measured"
            )
        if chosen > 1 and not self.stays and (what := self._counts(seen)):
            say(f"{what}, so {chosen} workers give the same random numbers. Seed it in worker_init_fn")
        if chosen > self.loader.num_workers and self.keep_order and self.order and self.order.own_random:
            say(
                f"{self.order.own_random} draws for the next epoch when workers, {chosen * self.ready} "
                "batches ahead, reach this one's end: a loop that breaks off there shuffles the next one "
                "otherwise, also behind the last batch. Go on until the loader ends (`for batch in loader`), "
                "or seed it in each epoch"
            )
        longer = self._chosen(rows, chosen, starting=False)
        if longer > chosen:
            say(
                f"an epoch of {self.length} batches is too short for {longer} workers that start in each; "
                "persistent_workers=True would pay, but changes how torch shuffles; see keep_order=False"
            )
        started = next((row.start_seconds for row in rows if row.workers == chosen), None)
        if chosen and started and self.keep_order and not self._stays_persistent():
            say(
                f"workers take {ms(started)} to start, in every epoch: persistent_workers=True saves that, "
                "but changes how torch shuffles from the second epoch on; keep_order=False allows it"
            )
        unmeasured = [str(row.workers) for row in rows if not row.runs and (row.workers or self.reads_here)]
        if unmeasured:
            several = ", ".join(unmeasured)
            say(f"{self.seconds:g} s were too short to measure {several} workers: give more seconds")


def _has_accelerator() -> bool:
    accelerator: Any = getattr(torch, "accelerator", torch.cuda)
    return bool(accelerator.is_available())


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _wait(seconds: float, batch: Any) -> None:
    """Stands for a step on a GPU: the host waits."""
    if seconds:
        time.sleep(seconds)
