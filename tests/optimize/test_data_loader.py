"""A data loader's workers: derived, measured, and the same samples in the same order."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)

from lostflops import optimize
from lostflops.optimize.device import host_share
from lostflops.optimize.loader import order_elsewhere, probe
from lostflops.optimize.loader import workers as data_loader
from lostflops.optimize.loader.batches import SampleOrder, made
from lostflops.optimize.loader.load_time import LoadTime
from lostflops.optimize.loader.order_elsewhere import OrderElsewhere
from lostflops.optimize.loader.own_state import changed, own_state
from lostflops.optimize.loader.probe import same
from lostflops.optimize.loader.workers import Candidate, predicted_seconds, workers_wanted

torch.set_num_threads(1)

pause = time.sleep  # of datasets and steps; `as_predicted` gives them a clock of their own
SECONDS = 20.0  # for tuning: a machine that others use may need them, an idle one needs few


class Sleeping(Dataset[torch.Tensor]):
    """A sample takes `seconds`; each `every`th one takes `rarely`."""

    def __init__(self, seconds: float, length: int = 5000, every: int = 0, rarely: float = 0.0) -> None:
        self.seconds, self.length, self.every, self.rarely = seconds, length, every, rarely

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        pause(self.rarely if self.every and index % self.every == 0 else self.seconds)
        return torch.tensor([index, 2 * index])


def tuned(loader: DataLoader[Any], **more: Any) -> optimize.LoaderSetting:
    return optimize.tune_loader(loader, **{"step_seconds": 0.004, "cores": 4, "seconds": SECONDS, **more})


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_loader, "ROUNDS", 1)


@pytest.fixture
def as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates take what the formula says, and samples and steps what they say: for what follows from
    measuring, and not from the machine."""
    now = [0.0]  # each worker has its own

    def passes(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0], sleep=passes)
    for module in (data_loader, probe):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(sys.modules[__name__], "pause", passes)

    def measured(_: Any, tried: Any, __: Any, step: float, load: Any) -> tuple[Candidate, ...]:
        times = {n: predicted_seconds(n, step, load.batch_seconds, load.receive_seconds) for n in tried}
        return tuple(Candidate(n, t, t, t, t, 0.07, 3) for n, t in sorted(times.items()))

    monkeypatch.setattr(data_loader._Tuning, "_measured", measured)


exactly = pytest.mark.usefixtures("as_predicted")


def test_the_formula_gives_the_numbers_of_the_book() -> None:
    # 80 ms loads and 30 ms steps; measured elsewhere: 111, 83, 45 and 36 ms.
    assert [round(1000 * predicted_seconds(w, 0.030, 0.080)) for w in (0, 1, 2, 4)] == [110, 80, 40, 30]
    assert workers_wanted(0.030, 0.080) == 3
    assert workers_wanted(0.040, 0.080) == 2  # exactly, and not 3
    assert workers_wanted(0.030, 0.080, receive_seconds=0.012) == 2
    assert workers_wanted(0.030, 0.0005) == 0
    assert workers_wanted(0.0, 0.080, most=7) == 7
    assert predicted_seconds(4, 0.030, 0.080, receive_seconds=0.005) == pytest.approx(0.035)


def test_slow_loads_get_the_workers_that_hide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that others use a try may be spoilt: one of three must show it all."""
    monkeypatch.setattr(data_loader, "ROUNDS", 3)
    loader = DataLoader(Sleeping(0.096), batch_size=1)
    for left in (2, 1, 0):
        setting = tuned(loader, step_seconds=0.032, seconds=8)
        measured = {row.workers: row.lowest_seconds or 0.0 for row in setting.candidates}
        predicted = {row.workers: row.predicted_seconds for row in setting.candidates}
        if (
            setting.verified
            and sorted(measured) == [0, 2, 3, 4]
            and setting.workers_wanted == 3
            and setting.workers in (3, 4)
            and setting.load.batch_seconds == pytest.approx(0.096, rel=0.15)
            and measured[0] > measured[2] > measured[3]
            and all(measured[n] == pytest.approx(predicted[n], rel=0.15) for n in (0, 2))
            and measured[3] == pytest.approx(predicted[3], rel=0.35)
        ):
            return
        if os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
            pytest.skip("too much else runs on this machine to time anything")
        assert left, setting


@exactly
def test_samples_in_memory_want_no_worker() -> None:
    loader = DataLoader(TensorDataset(torch.randn(512, 4)), batch_size=8, num_workers=2)
    setting = tuned(loader, step_seconds=0.5)
    assert setting.arguments == {"num_workers": 0, "pin_memory": False}
    assert any("in memory" in note for note in setting.notes)


def test_fewer_workers_win_when_they_are_as_good() -> None:
    tuning = data_loader._Tuning(DataLoader(Sleeping(0)), time.perf_counter(), 1, 8, True)
    rows = [(0, 9.0), (2, 4.1), (3, 4.0), (4, 3.95)]
    measured = [Candidate(n, 1.0, s, s, 2 * s, 0.0, 2) for n, s in rows]
    assert tuning._chosen(measured, 3) == 2
    measured[1] = Candidate(2, 1.0, 5.0, 5.0, 5.0, 0.0, 2)
    assert tuning._chosen(measured, 3) == 3
    measured[0] = Candidate(0, 1.0, 9.0, 4.1, 9.5, 0.0, 2)
    assert tuning._chosen(measured, 3) == 0, "no worker, when one of its runs was as good"
    assert tuning._chosen([Candidate(3, 4.0), Candidate(0, 9.0, 9.0, 9.0, 9.0, 0.0, 2)], 3) == 3


def test_workers_that_start_in_every_short_epoch_are_paid_for() -> None:
    tuning = data_loader._Tuning(DataLoader(Sleeping(0, length=5)), time.perf_counter(), 1, 8, True)
    rows = [Candidate(0, 9.0, 9.0, 9.0, 9.0, 0.0, 2), Candidate(2, 4.0, 4.0, 4.0, 4.0, 40.0, 2)]
    assert tuning._chosen(rows, 2) == 0  # 4 + 40/5 > 9
    assert tuning._chosen(rows, 2, starting=False) == 2
    load = data_loader.load_time([data_loader.Seen((8.0,), 0.1, 1.0, 4, 5, frozenset(), False, False)], 0.0)
    tuning._say([], load, 3.0, rows, 0, 4)
    assert any("an epoch of 5 batches is too short for 2 workers" in note for note in tuning.notes)
    tuning.length = 50
    assert tuning._chosen(rows, 2) == 2


@exactly
def test_uneven_samples_are_noticed_and_order_is_given_up_only_when_asked() -> None:
    loader = DataLoader(Sleeping(0.008, every=4, rarely=0.136), batch_size=1)
    setting = tuned(loader, step_seconds=0.005)
    assert setting.load.batch_spread > 1 and setting.workers >= 2
    # A busy machine measures fewer of them, so how many are slow depends on where they begin and end.
    samples = [0.136 if index % 4 == 0 else 0.008 for index in range(setting.load.batches + 4)]
    means = [statistics.fmean(samples[begin : begin + setting.load.batches]) for begin in range(4)]
    assert any(setting.load.batch_seconds == pytest.approx(mean, rel=0.3) for mean in means)
    assert "in_order" not in setting.arguments and not setting.arguments["persistent_workers"]
    assert setting.arguments["prefetch_factor"] == 4
    assert any("keep_order=False" in note for note in setting.notes)
    free = tuned(loader, step_seconds=0.005, keep_order=False)
    assert free.arguments["in_order"] is False and free.arguments["persistent_workers"]
    assert free.apply(loader).in_order is False


class Drawing(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def epochs(loader: DataLoader[Any], number: int = 3) -> list[list[int]]:
    torch.manual_seed(7)
    return [[int(x) for batch in loader for x in batch] for _ in range(number)]


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_setting_gives_the_same_samples_in_the_same_order(own_generator: bool) -> None:
    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(3) if own_generator else None
        return DataLoader(Drawing(), batch_size=4, shuffle=True, drop_last=True, generator=generator)

    wanted = epochs(loader())
    assert wanted[0] != wanted[1]
    given = loader()
    setting = tuned(given, step_seconds=0.0)
    for workers in (0, 2):
        arguments = {"num_workers": workers, "prefetch_factor": 2 if workers else None}
        assert epochs(made(loader(), **arguments)) == wanted
    assert epochs(setting.apply(given)) == wanted
    setting.undo()  # the loader that was given was left as it is, and gives what it would have
    assert given.num_workers == 0 and setting.report() is setting
    if own_generator:  # both draw from it
        given.generator.manual_seed(3)
    assert epochs(given) == wanted
    # Why persistent workers must be asked for: from the second epoch on the order is another one.
    lasting = made(loader(), num_workers=1, persistent_workers=True)
    assert epochs(lasting)[0] == wanted[0] and epochs(lasting)[1:] != wanted[1:]


class Counting(Sampler[int]):
    """Shuffles differently each time, from state of its own."""

    def __init__(self) -> None:
        self.epoch = 0
        self.random = random.Random(5)
        self.numpy = np.random.default_rng(6)

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(40))
        self.random.shuffle(order)
        return iter([*order, int(self.numpy.integers(40))])

    def __len__(self) -> int:
        return 41


class Rolling(Drawing):
    def __getitem__(self, index: int) -> int:
        return (
            index
            + 100 * random.randrange(9)
            + 1000 * int(torch.randint(9, ()))
            + 10000 * np.random.randint(9)
        )


def test_measuring_leaves_no_trace() -> None:
    def state() -> tuple[Any, ...]:
        drawn = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # pyright: ignore
        return *drawn, sampler.epoch, sampler.random.getstate(), repr(sampler.numpy.bit_generator.state)

    sampler = Counting()
    loader = DataLoader(Rolling(), batch_size=4, sampler=sampler, generator=torch.Generator().manual_seed(1))
    running = iter(loader)
    next(running)
    before = state(), loader.generator.get_state().tolist()
    setting = tuned(loader, step_seconds=0.0)
    assert (state(), loader.generator.get_state().tolist()) == before
    assert len(list(running)) == 10, "the loader that was being iterated goes on"
    assert multiprocessing.active_children() == []
    assert loader.num_workers == 0 and loader._iterator is None
    if setting.workers:
        assert any("draws random numbers" in note for note in setting.notes)


class InPlace(Counting):
    """Shuffles the list that it holds, by samplers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.order = list(range(40))
        self.parts = [RandomSampler(Drawing(), generator=torch.Generator().manual_seed(n)) for n in (1, 2)]

    def __iter__(self) -> Iterator[int]:
        self.random.shuffle(self.order)
        return itertools.chain(list(self.order), *self.parts)

    def state(self) -> tuple[Any, ...]:
        return list(self.order), [part.generator.get_state().tolist() for part in self.parts]


class Beside(Counting):
    """Draws for each sample when it is asked for."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(41):
            yield int(torch.randint(40, ()))


def test_a_sampler_is_copied_with_all_that_it_holds_but_datasets() -> None:
    sampler = InPlace()
    before, wanted = sampler.state(), list(copy.deepcopy(sampler))
    order = SampleOrder(DataLoader(Drawing(), 4, sampler=sampler))
    assert list(itertools.chain(*order.next(30))) == wanted and sampler.state() == before and not order.draws
    assert order._sampler.sampler.parts[0].data_source is sampler.parts[0].data_source
    sampler.parts.append(n for n in range(3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(optimize.Refused, match="sampler cannot be copied"):
        SampleOrder(DataLoader(Drawing(), 4, sampler=sampler))


@exactly
def test_a_sampler_that_draws_beside_the_steps_keeps_its_workers() -> None:
    for sampler, draws in ((Beside(), True), (RandomSampler(Drawing()), False)):
        order = SampleOrder(DataLoader(Drawing(), 4, sampler=sampler))
        order.next(25)  # into the third epoch
        assert order.draws is draws
    setting = tuned(DataLoader(Sleeping(0.01), 4, sampler=Beside()))
    assert setting.workers == 0 and any("beside those of the steps" in note for note in setting.notes)


class Resumable(Counting):
    """Knows where it is, and goes on from there."""

    position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 41:
            self.position += 1
            yield self.position - 1
        self.position = 0


class OwnDice(Counting):
    """Draws each sample from random numbers of its own."""

    def __iter__(self) -> Iterator[int]:
        return (self.random.randrange(40) for _ in range(41))


PLACES = {"next": 0}


def _next_place() -> int:
    PLACES["next"] += 1
    return PLACES["next"] % 40


class GlobalPlace(Counting):
    """Goes on from a place in a global, which a function of its module moves."""

    def __iter__(self) -> Iterator[int]:
        return (_next_place() for _ in range(41))


class ClassPlace(Counting):
    """Counts for all of its class."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(41):
            ClassPlace.place += 1
            yield ClassPlace.place % 40


class GlobalDice(Counting):
    """Draws each sample from random numbers in a global."""

    def __iter__(self) -> Iterator[int]:
        return (DICE.randrange(40) for _ in range(41))


def after_breaks(loader: DataLoader[Any]) -> list[list[int]]:
    """Epochs of three batches."""
    return [[int(x) for batch in itertools.islice(loader, 3) for x in batch[:, 0]] for _ in range(3)]


@pytest.mark.parametrize(
    ("sampler", "named"),
    [
        (Resumable, "sampler.sampler.position"),
        (OwnDice, "sampler.sampler.random"),
        (GlobalPlace, "PLACES['next'] changes"),
        (ClassPlace, "ClassPlace.place changes"),
        (GlobalDice, "DICE changes"),
    ],
)
def test_a_sampler_that_goes_on_after_a_break_keeps_its_workers(sampler: Any, named: str) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Sleeping(0), 4, sampler=sampler())

    ahead = made(loader(), num_workers=2)
    assert after_breaks(ahead) != after_breaks(loader()), "workers have asked for more than was used"
    tuning = data_loader._Tuning(loader(), time.perf_counter(), 1, 8, True)
    assert tuning.order is not None and tuning.order.next(24)
    assert named in tuning._depends_on_workers(())


def test_an_epochs_own_shuffle_is_no_state_that_goes_on() -> None:
    for sampler in (Counting(), RandomSampler(Drawing(), generator=torch.Generator().manual_seed(1))):
        order = SampleOrder(DataLoader(Drawing(), 4, sampler=sampler))
        order.next(25)  # into the third epoch
        assert order.counts == ""


def test_a_sampler_that_draws_at_an_epochs_end_is_told_of_for_loops_that_break_off_there() -> None:
    def loader() -> DataLoader[Any]:
        own = torch.Generator().manual_seed(1)
        return DataLoader(Drawing(), 4, sampler=RandomSampler(Drawing(), generator=own))

    def by_number(loader: DataLoader[Any]) -> list[list[int]]:
        """Epochs of just as many batches as there are."""
        return [[int(x) for b in itertools.islice(loader, len(loader)) for x in b] for _ in range(2)]

    assert by_number(made(loader(), num_workers=1)) != by_number(loader())
    assert epochs(made(loader(), num_workers=1)) == epochs(loader())
    order = SampleOrder(loader())
    assert order.own_random == "sampler.sampler.generator" and not order.counts
    assert not SampleOrder(DataLoader(Drawing(), 4, shuffle=True)).own_random
    tuning = data_loader._Tuning(loader(), time.perf_counter(), 1, 8, True)
    load = LoadTime(8, 1.0, 0.0, 0.25, 0.25, 0.0, 0.0, 1.0, 0, 0)
    tuning._say((), load, 0.1, (), 2, 4)
    assert any("generator draws for the next epoch when workers, 4 batches ahead" in n for n in tuning.notes)


class Keeping(Sleeping):
    """Has random numbers of its own, opens a file once and remembers."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(seconds)
        self.random, self.seen, self.file = np.random.default_rng(0), {}, None
        self.mean, self.counts = torch.zeros(2), {"read": 0}

    def __getitem__(self, index: int) -> torch.Tensor:
        self.file = self.file or object()
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("change", "where", "next_differs"),
    [
        (lambda data: data.random.integers(9), "dataset.random", True),
        (lambda data: data.counts.update(read=1), "dataset.counts['read']", True),
        (lambda data: data.mean.add_(1), "dataset.mean", True),
        (lambda data: data.seen.update({3: "page"}), "dataset.seen", False),
        (lambda data: data[0], "dataset.file", False),
        (lambda data: None, "", False),
    ],
)
def test_what_making_a_batch_changes_is_found(change: Any, where: str, next_differs: bool) -> None:
    data, number = Keeping(), 0
    masks = functools.partial(lambda generator, batch: (number, batch), torch.Generator())
    before = own_state(dataset=data, collate_fn=masks)
    change(data)
    assert changed(before, dataset=data, collate_fn=masks) == (where, where if next_differs else "")
    before = own_state(dataset=data, collate_fn=masks)
    torch.randint(9, (), generator=masks.args[0])
    found = changed(before, dataset=data, collate_fn=masks)
    assert found == ("collate_fn.args[0]", "collate_fn.args[0]")
    before = own_state(dataset=data, collate_fn=masks)
    number += 1  # which the function closes over
    assert changed(before, dataset=data, collate_fn=masks)[1] == "collate_fn.func.number"


class Masking:
    def __init__(self) -> None:
        self.random = random.Random(4)

    def __call__(self, batch: list[Any]) -> torch.Tensor:
        return torch.stack(batch) * self.random.randrange(2)


@exactly
def test_what_reading_changes_is_read_in_workers_only() -> None:
    data, masks = Keeping(0.01), Masking()
    before = own_state(dataset=data, collate_fn=masks)
    loader = DataLoader(data, 4, collate_fn=masks, pin_memory=True)
    setting = optimize.tune_loader(loader, lambda batch: None, cores=4, seconds=SECONDS)
    assert changed(before, dataset=data, collate_fn=masks) == ("", "")
    # Each worker would draw the same, and what one draws is another's with another number of them.
    assert setting.workers == 0 and setting.workers_wanted > 1 and setting.arguments["pin_memory"]
    assert any("stays at 0: making a batch changes collate_fn.random" in note for note in setting.notes)
    setting = tuned(loader, step_seconds=0.001, keep_order=False)
    assert setting.workers > 1 and any("give the same random numbers" in note for note in setting.notes)
    cached = tuned(DataLoader(data, 4), step_seconds=0.001)  # which changes no sample
    assert cached.workers > 1
    assert changed(before, dataset=data, collate_fn=masks) == ("", "")


class Unseen(Drawing):
    """Counts where nobody looks: in its class, an iterator, a generator of random numbers of the module."""

    read = 0

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.iterator = where, itertools.count()

    def __getitem__(self, index: int) -> int:
        if self.where == "class":
            type(self).read += 1
            return index + 1000 * self.read
        return index + (next(self.iterator) if self.where == "iterator" else DICE.randrange(1000))


DICE = random.Random(4)


@pytest.mark.parametrize("where", ["class", "iterator", "module"])
def test_a_batch_that_is_another_when_it_is_made_again_is_made_in_workers_only(where: str) -> None:
    """Measuring without workers went on counting in the training process: its first batches were others."""
    data = Unseen(where)
    before = Unseen.read, repr(data.iterator), DICE.getstate()
    setting = tuned(DataLoader(data, 4), step_seconds=0.001)
    assert (Unseen.read, repr(data.iterator), DICE.getstate()) == before
    assert setting.workers == 0
    assert any("stays at 0: making a batch changes what its samples are made of" in n for n in setting.notes)


class CountingElsewhere(Counting):
    """Shuffles by random numbers of the module, and counts in its class."""

    begun = 0

    def __iter__(self) -> Iterator[int]:
        type(self).begun += 1
        return (DICE.randrange(40) for _ in range(41))


def test_a_sampler_that_counts_in_a_global_goes_on_from_where_it_was() -> None:
    """A copy of it went on counting there: the training's first epoch was another."""
    before = CountingElsewhere.begun, DICE.getstate()
    tuned(DataLoader(Drawing(), 4, sampler=CountingElsewhere()), step_seconds=0.001)
    assert (CountingElsewhere.begun, DICE.getstate()) == before
    assert multiprocessing.active_children() == []


class Here(Counting):
    """Works in the process that made it only, or nowhere; or waits."""

    def __init__(self, where: int, waits: float = 0) -> None:
        super().__init__()
        self.where, self.waits = where, waits

    def __iter__(self) -> Iterator[int]:
        time.sleep(self.waits)
        if os.getpid() != self.where:
            raise OSError("no such device")
        return iter(range(41))


def test_a_sampler_that_fails_in_another_process_is_asked_in_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def order(*given: Any) -> OrderElsewhere:
        return OrderElsewhere(SampleOrder(DataLoader(Drawing(), 4, sampler=Here(*given))), 0.1)

    with closing(order(os.getpid())) as found:
        assert list(itertools.chain(*found.next(3), *found.next(1))) == list(range(16))
    with closing(order(0)) as found, pytest.raises(OSError, match="no such device"):
        found.next(3)
    monkeypatch.setattr(order_elsewhere, "PATIENCE", 0.1)
    with closing(order(os.getpid(), 5)) as found, pytest.raises(optimize.Refused, match=r"within 0\.1 s"):
        found.next(3)
    assert multiprocessing.active_children() == []


def test_batches_are_compared_to_the_bit_as_far_as_they_can_be() -> None:
    def batch(number: float) -> Any:
        values = torch.tensor([number, torch.nan])
        return {"x": (values, [np.array([number, np.nan])]), "y": ("a", number, None, Drawing())}

    assert same(batch(1.0), batch(1.0)) and not same(batch(1.0), batch(2.0))
    assert not same([1], (1,)) and not same([1], [1, 2]) and not same({"a": 1}, {"b": 1})
    knot: Any = Drawing()
    knot.itself = knot
    assert same(knot, copy.copy(knot))


def test_a_running_random_sampler_is_not_disturbed() -> None:
    wanted = epochs(DataLoader(Drawing(), batch_size=4, shuffle=True), 1)
    loader = DataLoader(Drawing(), batch_size=4, shuffle=True)
    torch.manual_seed(7)
    running = iter(loader)
    seen = [int(x) for x in next(running)]
    tuned(loader, step_seconds=0.0)
    assert [*seen, *(int(x) for batch in running for x in batch)] == wanted[0]


class Failing(Drawing):
    def __getitem__(self, index: int) -> int:
        if index == 17:
            raise KeyError("no such picture")
        return index


class Hanging(Drawing):
    def __getitem__(self, index: int) -> int:
        time.sleep(60)
        return index


class Dying(Drawing):
    def __getitem__(self, index: int) -> int:
        if get_worker_info() is not None:
            os._exit(3)
        return index


def refused(loader: DataLoader[Any], **more: Any) -> str:
    began = time.perf_counter()
    with pytest.raises(optimize.Refused) as error:
        tuned(loader, **more)
    assert time.perf_counter() - began < 12
    assert multiprocessing.active_children() == []
    return str(error.value)


def test_a_dataset_that_fails_is_refused_with_its_error() -> None:
    assert "sample 17: KeyError: 'no such picture'" in refused(DataLoader(Failing(), batch_size=4))


def test_a_dataset_that_fails_late_is_refused_too() -> None:
    class Late(Drawing):
        def __getitem__(self, index: int) -> int:
            if index > 30 and get_worker_info() is None:
                raise OSError("too many open files")
            return index

    said = refused(DataLoader(Late(), batch_size=1), step_seconds=0.0)
    assert "OSError: too many open files" in said


def test_a_dataset_that_hangs_is_refused() -> None:
    began = time.perf_counter()
    assert "no batch came within 0.4 s" in refused(DataLoader(Hanging()), seconds=0.4)
    assert time.perf_counter() - began < 4.5, "torch itself would wait five seconds for the worker"


def test_a_worker_that_dies_is_refused() -> None:
    assert "exited unexpectedly" in refused(DataLoader(Dying()))


def test_a_dataset_that_cannot_be_sent_is_refused() -> None:
    class Local(Drawing):
        pass

    loader = DataLoader(Local(), num_workers=1, multiprocessing_context="spawn")
    assert "cannot be sent to a worker process" in refused(loader)


def test_other_loaders_are_refused_in_words() -> None:
    class StatefulDataLoader(DataLoader[Any]):
        pass

    assert "StatefulDataLoader is no torch.utils.data.DataLoader" in refused(StatefulDataLoader(Drawing()))
    setting = tuned(DataLoader(Drawing()))
    with pytest.raises(optimize.Refused, match="StatefulDataLoader"):
        setting.apply(StatefulDataLoader(Drawing()))


def test_what_makes_no_sense_is_refused() -> None:
    loader = DataLoader(Drawing())
    for more in (
        {"step_seconds": None}, {"step": print}, {"step_seconds": -1.0}, {"step_seconds": float("nan")},
        {"cores": 0}, {"seconds": 0},
    ):  # fmt: skip
        refused(loader, **more)
    refused(DataLoader(TensorDataset(torch.empty(0, 3))))
    refused(DataLoader(Drawing(), sampler=(n for n in range(40))))  # pyright: ignore[reportArgumentType]


class Stream(IterableDataset[int]):
    """All of its samples in every worker, unless `shared`."""

    def __init__(self, shared: bool, length: int = 60) -> None:
        self.shared, self.first, self.stride, self.length = shared, 0, 1, length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info() if self.shared else None
        first, stride = (self.first, self.stride) if info is None else (info.id, info.num_workers)
        for n in range(first, self.length, stride):
            pause(0.02)
            yield n


def share(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.first, info.dataset.stride = info.id, info.num_workers


class Once(Stream):
    def __next__(self) -> int:
        raise StopIteration


@exactly
def test_an_iterable_dataset_gets_several_workers_only_when_it_shares_its_samples() -> None:
    setting = tuned(DataLoader(Stream(False), num_workers=2), step_seconds=0.001)
    assert setting.workers_possible == 1 and setting.workers <= 1
    assert any("get_worker_info" in note for note in setting.notes)
    assert any("gives each sample 2 times" in note for note in setting.notes)
    setting = tuned(DataLoader(Stream(True), drop_last=True), step_seconds=0.001)
    assert setting.workers_possible == 1, "several would give another order"
    assert any("each would drop a last batch: keep_order=False" in note for note in setting.notes)
    for loader in (DataLoader(Stream(True)), DataLoader(Stream(False), worker_init_fn=share)):
        setting = tuned(loader, step_seconds=0.001, keep_order=False)
        assert setting.workers_possible == 4 and setting.workers > 1, setting
        got = [int(x) for batch in setting.apply(loader) for x in batch]
        assert sorted(got) == list(range(60))
    assert "is its own iterator" in refused(DataLoader(Once(True)))


def test_a_stream_of_a_few_batches_is_measured() -> None:
    setting = tuned(DataLoader(Stream(True, length=9)), step_seconds=0.002)
    assert any(row.runs for row in setting.candidates)


@exactly
def test_workers_are_limited_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Sleeping(0.01), batch_size=1)
    setting = tuned(loader)
    assert setting.workers_possible == 4
    assert setting.load.worker_bytes > 100_000
    # Room for two and a half of them.
    monkeypatch.setattr(host_share, "memory", lambda: int(2.5 * setting.load.worker_bytes / 0.8))
    small = tuned(loader)
    assert small.workers_possible in (1, 2) and small.workers <= 2
    assert any("memory allows" in note for note in small.notes)


def test_cores_are_shared_between_the_ranks_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_share, "_groups", lambda _: ())
    monkeypatch.setattr(os, "cpu_count", lambda: 24)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(24)))
    assert host_share.cores() == 24
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert host_share.cores() == 6
    # Bound to cores of its own by the launcher: those are divided already.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    assert host_share.cores() == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "80")
    assert host_share.cores() == 1


def test_a_container_limits_cores_and_memory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    monkeypatch.setattr(host_share, "_groups", lambda _: (tmp_path, tmp_path / "absent"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(24)))
    assert host_share.cores() == 1
    assert host_share.memory() == 400
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert host_share.memory() == 133
    (tmp_path / "memory.max").write_text("max\n")
    assert host_share.memory() > 10**6


def collate(samples: list[Any]) -> list[Any]:
    return samples


def start(worker: int) -> None: ...


@exactly
def test_applying_keeps_all_that_is_not_tuned() -> None:
    setting = tuned(DataLoader(Sleeping(0.01)))
    assert setting.workers
    generator = torch.Generator()
    loader = DataLoader(
        Drawing(), 6, shuffle=True, num_workers=1, collate_fn=collate, drop_last=True, timeout=9,
        worker_init_fn=start, multiprocessing_context="forkserver", generator=generator,
    )  # fmt: skip
    new = setting.apply(loader)
    for name in ("dataset", "batch_size", "sampler", "collate_fn", "drop_last", "timeout", "worker_init_fn",
                 "multiprocessing_context", "generator"):  # fmt: skip
        assert getattr(new, name) is getattr(loader, name), name
    assert new.num_workers == setting.workers and loader.num_workers == 1
    batches = BatchSampler(RandomSampler(Drawing()), 3, False)
    assert setting.apply(DataLoader(Drawing(), batch_sampler=batches)).batch_sampler is batches
    unbatched = DataLoader(Drawing(), batch_size=None, sampler=SequentialSampler(Drawing()))
    assert list(made(unbatched, num_workers=0)) == list(range(40))
    without = made(loader, num_workers=0)
    assert without.timeout == 0 and len(without) == 6


@exactly
def test_a_step_is_measured_with_the_batches_it_may_take_apart() -> None:
    class Named(Sleeping):
        def __getitem__(self, index: int) -> Any:
            return {"x": super().__getitem__(index), "labels": index}

    seen = []

    def step(batch: dict[str, Any]) -> None:
        seen.append(batch.pop("labels"))
        pause(0.005)

    setting = tuned(DataLoader(Named(0.01)), step=step, step_seconds=None)
    assert 0.005 <= setting.step_seconds < 0.05
    assert setting.workers in (1, 2, 3)
    assert len(seen) >= 4 and seen[:2] == seen[2:4]  # two batches in turn, each whole again


def test_a_step_that_fails_fails_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        tuned(DataLoader(Drawing()), step=lambda _: 1 / 0, step_seconds=None)
    assert multiprocessing.active_children() == []


def test_without_the_time_to_measure_the_formula_stands_and_says_so() -> None:
    setting = tuned(DataLoader(Sleeping(0.5)), step_seconds=0.3, seconds=2)
    assert setting.workers == 2 and not setting.verified
    assert any("too short to measure" in note for note in setting.notes)
    assert setting.took_seconds < 3


class Meta(Drawing):
    def __getitem__(self, index: int) -> Any:
        pause(0.01)
        return torch.empty(3, device="meta")


def test_samples_on_a_device_are_left_to_the_training_process() -> None:
    setting = tuned(DataLoader(Meta(), collate_fn=collate), step_seconds=0.003)
    assert setting.arguments == {"num_workers": 0, "pin_memory": False}
    assert any("samples lie on meta" in note for note in setting.notes)


@exactly
def test_workers_that_live_on_still_do() -> None:
    loader = DataLoader(Sleeping(0.0), num_workers=2, persistent_workers=True, prefetch_factor=5)
    setting = tuned(loader, step_seconds=0.01)
    assert setting.arguments == {
        "num_workers": 1, "pin_memory": False, "prefetch_factor": 5, "persistent_workers": True,
    }  # fmt: skip


def test_a_setting_is_a_record_with_units_in_its_names() -> None:
    setting = tuned(DataLoader(Sleeping(0.004)))
    record = json.loads(json.dumps(setting.record()))
    derived = min(setting.workers_wanted, setting.workers_possible)
    assert record["arguments"]["num_workers"] == setting.workers
    assert record["load"]["batch_seconds"] > 0.003 and record["took_seconds"] > 0
    assert {row["workers"] for row in record["candidates"]} >= {0, derived}
    text = str(setting)
    assert "num_workers=" in text and "predicted" in text and "<-" in text
