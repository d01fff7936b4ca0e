"""Saved tensors by a clock that a test winds, and which bytes of a view travel: every number by hand."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lostflops.optimize.activations import saved, saved_views
from lostflops.optimize.refused import Refused

torch.set_num_threads(1)

TICK = 10


class Numbers(torch.nn.Module):
    """Three numbers; what is done to them is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.p = torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, *given: Any, **named: Any) -> Any:
        return (self.p * sum(given, *named.values())).sum()


@pytest.fixture
def _wound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is ten nanoseconds after the last."""
    now = iter(range(1000, 10**9, TICK))
    monkeypatch.setattr(saved, "time", SimpleNamespace(perf_counter_ns=lambda: next(now)))


wound = pytest.mark.usefixtures("_wound")


@wound
def test_every_time_of_a_profile_is_a_look_at_the_clock() -> None:
    """The clock is read at the beginning, at three saves, in the middle, at three requests and at the end."""
    model = Numbers()

    def run() -> torch.Tensor:
        y = model.p.exp()  # saves what it made
        return (y * y).sum()  # saves it twice more

    profile = saved.saved_tensors(model, run)
    assert (profile["forward_ns"], profile["backward_ns"]) == (4 * TICK, 4 * TICK)
    (row,) = profile["rows"]
    assert (row["storage"], row["order"], row["bytes"], row["saves"]) == (0, 0, 12, 3)
    assert (row["pack_ns"], row["unpack_ns"], row["recompute_ns"]) == (TICK, 5 * TICK, TICK)
    assert (row["dtype"], row["operator"], row["is_output"]) == ("float32", "ExpBackward0", True)
    assert (row["covered_fraction"], row["kept_reason"]) == (1.0, None)
    assert profile["one_by_one_bytes"] == 3 * 12
    assert profile["static_bytes"] == 12
    # The numbers and y; then y's square and the sum of 4 bytes, too. Going back the sum's gradient, and what
    # reaches y from either side, and both added up; then what reaches the numbers beside what reached y.
    assert [at for at, _ in profile["highs"]] == [TICK * n for n in range(1, 9)]
    highs = [high for _, high in profile["highs"]]
    assert highs == [24, 24, 24, 40, 32, 32, 32 + 3 * 12, 32 + 2 * 12]
    assert profile["peak_bytes"] == max(highs)
    assert profile["schema"] == 1


@wound
def test_a_loss_of_one_number_is_not_summed() -> None:
    model = Numbers()
    highs = [high for _, high in saved.saved_tensors(model, lambda: model.p.exp().sum())["highs"]]
    assert highs[:2] == [24, 28]  # the numbers, their exponentials, and the loss


def test_memory_is_read_in_the_first_pass_and_what_nothing_keeps_is_forgotten() -> None:
    timed, watched = (
        saved._Pass(Numbers(), torch.device("cpu"), watched=watched)  # pyright: ignore[reportPrivateUsage]
        for watched in (False, True)
    )
    assert timed._meter is None and watched._meter is not None  # pyright: ignore[reportPrivateUsage]
    kept = [timed._pack(t) for t in (torch.ones(3), torch.ones(4))]  # pyright: ignore[reportPrivateUsage]
    assert len(timed._open) == 2  # pyright: ignore[reportPrivateUsage]
    del kept[0]
    assert [row.bytes for row, _ in timed._open.values()] == [16]  # pyright: ignore[reportPrivateUsage]


@wound
def test_what_is_written_in_place_is_made_again_by_both_operators() -> None:
    model = Numbers()

    def run() -> torch.Tensor:
        y = model.p * 2
        y.add_(1)
        y = y.view(3)  # no write
        return (y * y).sum()

    (row,) = saved.saved_tensors(model, run)["rows"]
    assert row["recompute_ns"] == 2 * TICK
    assert not row["is_output"]
    assert (row["order"], row["saves"]) == (0, 2)


@wound
def test_storages_are_numbered_in_the_order_of_saving_and_parameters_stay() -> None:
    model = Numbers()

    def run() -> torch.Tensor:
        y = model.p * model.p  # the parameter twice
        z = y.exp()
        return (z * y).sum() + y[:0].exp().sum()

    profile = saved.saved_tensors(model, run)
    told = [(r["storage"], r["order"], r["bytes"], r["saves"], r["kept_reason"]) for r in profile["rows"]]
    assert told == [
        (0, 0, 12, 2, "parameter"),
        (1, 2, 12, 2, None),  # z by its exponential, then by the product
        (2, 3, 12, 1, None),  # y by the product
        (3, 5, 0, 1, "empty"),
    ]
    assert [row["pack_ns"] for row in profile["rows"]] == [TICK * at for at in (1, 3, 4, 6)]
    assert profile["one_by_one_bytes"] == 3 * 12


@wound
def test_what_the_backward_never_asks_for_has_no_time() -> None:
    model = Numbers()

    def run() -> torch.Tensor:
        unused = model.p.exp()
        kept.append(unused)
        return (model.p * 2).sum()

    kept: list[torch.Tensor] = []
    (row,) = saved.saved_tensors(model, run)["rows"]
    assert row["unpack_ns"] is None and row["pack_ns"] == TICK


def test_both_passes_draw_the_same_random_numbers_and_leave_them_as_they_were() -> None:
    model = Numbers()
    drawn: list[tuple[float, float]] = []

    def run() -> torch.Tensor:
        drawn.append((random.random(), float(torch.rand(1))))
        return model.p.exp().sum()

    state = random.getstate()
    saved.saved_tensors(model, run)
    assert len(drawn) == 2 and drawn[0] == drawn[1]
    assert random.getstate() == state


def test_an_address_is_forgotten_with_the_last_that_keeps_it_alive() -> None:
    at = saved._Pass(Numbers(), torch.device("cpu"), watched=False)  # pyright: ignore[reportPrivateUsage]
    live, row = [2], cast("Any", None)
    at._open[5] = row, live  # pyright: ignore[reportPrivateUsage]
    at._let_go(5, live)  # pyright: ignore[reportPrivateUsage]
    assert 5 in at._open  # pyright: ignore[reportPrivateUsage]
    at._let_go(5, live)  # pyright: ignore[reportPrivateUsage]
    assert 5 not in at._open and live == [0]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("batch", [3, (1, 2), {"a": 3}])
def test_a_batch_is_given_by_name_by_position_or_alone(batch: Any) -> None:
    seen: list[Any] = []

    class Sees(Numbers):
        def forward(self, *given: Any, **named: Any) -> Any:
            seen.append((given, named))
            return self.p.exp().sum()

    saved.saved_tensors(Sees(), batch)
    expected = {int: ((3,), {}), tuple: ((1, 2), {}), dict: ((), {"a": 3})}[type(batch)]
    assert seen == [expected, expected]


@pytest.mark.parametrize("as_what", ["dict", "object", "tuple", "vector"])
def test_the_loss_is_what_is_called_so_or_the_sum_of_the_first_tensor(as_what: str) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    loss, other = x.sum(), torch.ones(5)
    output = {
        "dict": {"logits": other, "loss": loss},
        "object": SimpleNamespace(logits=other, loss=loss),
        "tuple": ("first", loss, other),
        "vector": x * 1,
    }[as_what]
    found = saved._loss(output)  # pyright: ignore[reportPrivateUsage]
    assert found.numel() == 1 and float(found) == 3.0


@pytest.mark.parametrize("output", [None, {}, torch.ones(2), {"loss": 3.0}])
def test_a_result_without_a_gradient_has_no_loss(output: Any) -> None:
    with pytest.raises(Refused, match="no gradient"):
        saved._loss(output)  # pyright: ignore[reportPrivateUsage]


def test_a_model_on_two_devices_is_refused() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta")])
    with pytest.raises(Refused, match="the model lies on cpu, meta"):
        saved.saved_tensors(model, lambda: torch.ones(1))
    one = torch.nn.Linear(1, 1, device="meta")
    assert saved._device(one) == torch.device("meta")  # pyright: ignore[reportPrivateUsage]
    assert saved._device(torch.nn.ReLU()) == torch.device("cpu")  # pyright: ignore[reportPrivateUsage]


def test_the_share_of_a_storage_that_a_view_spans() -> None:
    rows = torch.arange(40.0).reshape(4, 10)
    spans = [rows, rows[:, 5:], rows[1], rows[:1].expand(9, 10), rows[0, :1].expand(7), rows[:0]]
    shares = [saved._covered(view) for view in spans]  # pyright: ignore[reportPrivateUsage]
    assert shares == [1.0, 0.5, 0.25, 0.25, 0.025, 0.0]
    assert saved._covered(torch.ones(0)) == 0.0  # pyright: ignore[reportPrivateUsage]
    windows = torch.arange(10.0).unfold(0, 4, 1)  # each element up to four times
    assert saved._covered(windows) == 1.0  # pyright: ignore[reportPrivateUsage]


# Which bytes of a view travel.


def test_a_gathered_view_takes_the_room_that_it_spans_and_no_more() -> None:
    """Two rows of nine, thirty apart: 39 numbers from the first to the last."""
    view = torch.arange(900.0).reshape(30, 30)[1:3, 2:11]
    part = saved_views.view_of(view)
    assert part is not None
    again = saved_views.restored(part, saved_views.bytes_of(view, part))
    assert again.untyped_storage().nbytes() == 39 * 4


def travels(view: torch.Tensor) -> tuple[Any, ...] | None:
    part = saved_views.view_of(view)
    return part and (part.first_byte, part.nbytes, part.offset, part.stride, part.gathered_from)


def test_where_a_tensor_lies_says_whether_it_stays() -> None:
    at = saved._Pass(Numbers(), torch.device("cpu"), watched=False)  # pyright: ignore[reportPrivateUsage]
    for device, why in (("meta", "not on the device"), ("cpu", None)):
        part = torch.empty(3, device=device)
        found = at._kept_reason(part, part.untyped_storage())  # pyright: ignore[reportPrivateUsage]
        assert found == why


def test_two_fifths_of_a_storage_travel_alone() -> None:
    row = saved_views.view_of(torch.zeros(100)[:40])
    assert row is not None and row.nbytes == 160
    rows = saved_views.view_of(torch.zeros(3, 8)[:, :3])
    assert rows is not None and rows.nbytes == 36 and rows.gathered  # 9 of the 19 that it reaches over
    assert saved_views.view_of(torch.zeros(4, 4)[:, :2]) is None  # half, as it lies


def test_half_of_a_storage_takes_the_whole_along_and_less_does_not() -> None:
    line, rows = torch.arange(100.0), torch.arange(100.0).reshape(10, 10)
    assert travels(line[50:]) is None
    assert travels(line[51:]) == (204, 196, 0, (1,), None)
    assert travels(rows[:, 5:]) is None  # scattered, and half
    assert travels(rows.t()) is None
    assert travels(rows[:, :4]) == (0, 160, 0, (4, 1), (10, 1))
    assert travels(rows[1:6, 1:]) == (44, 196, 0, (10, 1), None)


def test_what_is_half_of_what_it_reaches_over_travels_as_it_lies() -> None:
    """Twice 10 elements that reach over 40 travel as they lie; twice 9 that reach over 39 are gathered."""
    rows = torch.arange(900.0).reshape(30, 30)
    assert travels(rows[1:3, 2:12]) == (4 * 32, 160, 0, (30, 1), None)
    assert travels(rows[1:3, 2:11]) == (4 * 32, 72, 0, (9, 1), (30, 1))
    assert travels(rows[1:3, 2:11].t()) == (4 * 32, 72, 0, (1, 9), (1, 30))
    assert travels(rows[:, 3]) == (12, 120, 0, (1,), (30,))
    assert travels(rows[2, :3].expand(50, 3)) == (240, 12, 0, (0, 1), None)
    assert travels(rows[:2, :1].expand(2, 8)) == (0, 8, 0, (1, 0), (30, 0))
    assert travels(torch.arange(1000.0).unfold(0, 10, 1)[:20]) == (0, 4 * 29, 0, (1, 1), None)


def test_only_views_that_lie_alike_share_what_was_gathered() -> None:
    rows = torch.arange(900.0).reshape(30, 30)
    square = rows[:4, :4]
    keys = [saved_views.view_of(view) for view in (square, square.t(), rows[:4, :4], rows[1:5, :4])]
    one, turned, again, lower = (part.key for part in keys if part)
    assert one == again and len({one, turned, lower}) == 3
    assert saved_views.whole_view(rows).key == saved_views.whole_view(rows[3:].t()).key == (0, 3600)
    assert saved_views.whole_view(rows[3:]).offset == 90


@pytest.mark.parametrize(
    "cut",
    [
        lambda rows: rows[1:3, 2:11],
        lambda rows: rows[1:3, 2:11].t(),
        lambda rows: rows[:2, :1].expand(2, 8),
        lambda rows: rows[2, :3].expand(50, 3),
        lambda rows: rows[1:3, 2:12],
        lambda rows: rows.reshape(-1).as_strided((3, 5), (7, 3), 4)[:2],
    ],
)
def test_a_view_is_made_again_with_its_strides_from_anywhere_in_the_copy(cut: Any) -> None:
    view = cut(torch.arange(900.0).reshape(30, 30))
    part = saved_views.view_of(view)
    assert part is not None
    held = saved_views.bytes_of(view, part)
    assert held.dtype == torch.uint8 and held.numel() == part.nbytes
    arena = torch.zeros(part.nbytes + 64, dtype=torch.uint8)
    arena[64:].copy_(held)
    again = saved_views.restored(part, arena[64:])
    assert torch.equal(again, view)
    assert again.stride() == view.stride()


def test_windows_of_a_view_that_overlap_and_are_gathered_come_back_equal() -> None:
    """Two lines fifty apart, each of three windows of three numbers, of which they share some."""
    view = torch.arange(900.0).as_strided((2, 3, 3), (50, 1, 1))
    part = saved_views.view_of(view)
    assert part is not None and part.gathered and part.nbytes == 18 * 4
    again = saved_views.restored(part, saved_views.bytes_of(view, part))
    assert torch.equal(again, view) and again.stride() == view.stride()


@pytest.mark.parametrize("cut", [lambda rows: rows[3:], lambda rows: rows.t(), lambda rows: rows[2, 5:7]])
def test_a_view_whose_whole_storage_travels_begins_where_it_began(cut: Any) -> None:
    view = cut(torch.arange(900.0).reshape(30, 30))
    arena = torch.zeros(3600 + 64, dtype=torch.uint8)
    whole = saved_views.whole_view(view)
    arena[64:].copy_(saved_views.bytes_of(view, whole))
    again = saved_views.restored(whole, arena[64:])
    assert torch.equal(again, view) and again.stride() == view.stride()


def test_a_devices_clock_tells_milliseconds() -> None:
    waited = list[str]()
    begin = SimpleNamespace(elapsed_time=lambda end: end.at - 1.25)
    end = SimpleNamespace(at=3.0, synchronize=lambda: waited.append("end"))
    assert saved._CudaClock.ns(cast("Any", None), begin, end) == 1_750_000  # pyright: ignore[reportPrivateUsage]
    assert waited == ["end"]
