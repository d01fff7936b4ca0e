"""Two runs in one page: the second below the first, step by step, and what they differ in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lostflops.cli import main
from lostflops.errors import BadOption
from lostflops.store.trace import REPLAYED, Quality, Trace, write_manifest
from lostflops.viewer.server import runs, serving
from lostflops.viewer.server.guard import Keys
from viewed import at_work, browsing, job, stored

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
LATER = 1000  # ns by which the second run's clock is ahead
FASTER = 15  # ns of each of its steps


def faster() -> dict[str, list[dict[str, Any]]]:
    """The same job with a shorter communication: steps of 85 ns in place of 100, on a clock of its own."""
    rows = job()
    for name, table in rows.items():
        if name in ("ranks", "counters", "allocations"):
            continue
        for row in table:
            for column in ("start", "end", "arrival", "launch_start", "launch_end"):
                if row.get(column) is not None:
                    row[column] = _moved(row[column])
    for row in rows["ranks"]:
        row |= {"start": LATER, "end": LATER + 200}
    return {name: table for name, table in rows.items() if name not in ("counters", "allocations")}


def _moved(at: int) -> int:
    step = max(0, (at - 10) // 100)
    within = at - 10 - 100 * step
    return LATER + 10 + (100 - FASTER) * step + (within if within < 60 else max(60, within - FASTER))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("two")
    stored(place / "base")
    stored(place / "new", faster())
    return place / "base", place / "new"


@pytest.fixture(scope="module")
def tab(two: tuple[Path, Path]) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    keys = Keys(8000)
    ids = {run["title"]: run["id"] for run in browsing(*two)[0].get("/api/runs").json()["runs"]}
    with at_work(keys, *two) as port, playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": 1400, "height": 800})
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto(f"http://localhost:{port}/run/{ids['base']}?token={keys.token()}#with={ids['new']}")
        page.locator(".compared tfoot").wait_for()
        yield page
        opened.close()


def test_the_address_of_two_runs_leads_to_both(tab: Any) -> None:
    assert "token" not in tab.url and "with=" in urlsplit(tab.url).fragment
    assert tab.locator(".body h2").inner_text() == "A base beside B new"


def test_no_tab_is_cut_off(tab: Any) -> None:
    whole, shown = tab.evaluate(
        "() => { const { scrollWidth, clientWidth } = document.querySelector('.tabs');"
        " return [scrollWidth, clientWidth]; }"
    )
    assert whole <= shown
    panel = tab.locator(".panel").bounding_box()
    for one in tab.locator(".tabs button").all():
        box = one.bounding_box()
        assert panel["x"] <= box["x"] and box["x"] + box["width"] <= panel["x"] + panel["width"]


def test_steps_and_accounts_of_both_stand_beside_each_other_and_add_up(tab: Any) -> None:
    assert "Step 3 of A takes 100 ns, step 3 of B 85 ns: 15.0 % less." in tab.locator(".verdict").inner_text()
    accounts = tab.locator(".compared").first
    accounts.locator("tbody tr").first.wait_for()
    rows = [row.locator("td").all_inner_texts() for row in accounts.locator("tbody tr").all()]
    number = lambda text: float(text.replace("−", "-").replace("+", "").removesuffix(" ns"))  # noqa: E731
    a, b, by = (sum(number(row[i]) for row in rows) for i in range(3))
    assert (a, b) == (pytest.approx(100, abs=2), pytest.approx(85, abs=2))
    assert by == pytest.approx(-FASTER, abs=2)
    steps = tab.locator(".compared").last
    assert steps.locator("tbody tr").nth(1).locator("td").all_inner_texts() == ["100 ns", "85 ns", "−15 ns"]
    assert steps.locator("tfoot td").all_inner_texts() == ["100 ns", "85 ns", "−15 ns"]


def test_the_second_run_is_drawn_below_the_first_from_the_same_place(tab: Any) -> None:
    tab.locator(".compared").last.get_by_role("button", name="4").click()
    tab.wait_for_selector("body[data-settled=true]", state="attached")
    tab.wait_for_selector(".timeline canvas[data-complete=true]")
    assert "Step 4 of A" in tab.locator(".verdict").inner_text()
    found = [at for at in _starts(tab) if at >= 0]
    # From 10 ns of the step on, in both runs: at the same place in their rows.
    assert len(found) > 30 and max(found) - min(found) <= 10


def _starts(tab: Any) -> list[int]:
    """Where in each line of pixels compute begins; -1 in lines without any."""
    return tab.evaluate(
        """([wanted, left, top]) => {
            const canvas = document.querySelector('.timeline canvas');
            const wide = canvas.width - left;
            return Array.from({ length: canvas.height - top }, (_, y) => {
                const { data } = canvas.getContext('2d').getImageData(left, top + y, wide, 1);
                const is = (x) => wanted.every((part, i) => data[4 * x + i] === part);
                return Array.from({ length: wide }, (_, x) => x).findIndex(is);
            });
        }""",
        [COMPUTE, LEFT, TOP],
    )


def test_an_event_of_the_second_run_opens_by_a_click_and_the_next_one_by_a_key(tab: Any) -> None:
    settled = lambda: tab.wait_for_selector("body[data-settled=true]", state="attached")  # noqa: E731
    tab.locator(".timeline canvas").focus()
    for _ in range(40):  # down to a stream of B that has an event in the middle of the view
        tab.keyboard.press("ArrowDown")
        settled()
        if "row=u" not in tab.url:
            continue
        tab.keyboard.press(".")
        tab.wait_for_timeout(60)
        settled()
        if "event=" in tab.url:
            break
    tab.locator(".body h2.name").wait_for()
    said = tab.locator(".body").inner_text()
    assert " of B" in said and re.search(r"event=\d+,\d+,b", tab.url)
    start = int(re.search(r"start\s+([\d,]+) ns after", said)[1].replace(",", ""))  # type: ignore[index]
    assert start + LATER in {row["start"] for rows in faster().values() for row in rows if "start" in row}
    tab.keyboard.press("r")
    settled()
    assert re.search(r"rows=r\d", tab.url)
    tab.keyboard.press("Escape")
    settled()
    tab.wait_for_selector(".timeline canvas[data-complete=true]")
    # By a click on B's row of rank 0: the third block of lines in which something computes.
    box = tab.locator(".timeline canvas").bounding_box()
    starts = _starts(tab)
    y = [y for y, at in enumerate(starts) if at >= 0 and starts[y - 1] < 0][2]
    tab.mouse.click(box["x"] + LEFT + starts[y] + 4, box["y"] + TOP + y + 5)
    tab.locator(".body h2.name").wait_for()
    settled()
    assert " of B" in tab.locator(".body").inner_text() and re.search(r"event=\d+,\d+,b", tab.url)
    link = tab.url
    tab.reload()
    tab.locator(".body h2.name").wait_for()
    assert " of B" in tab.locator(".body").inner_text() and tab.url == link
    tab.get_by_role("tab", name="Compare").click()


COMPUTE = [47, 111, 179]
LEFT, TOP = 196, 51  # the titles of rows; the ruler and the steps of both runs


def test_another_run_is_chosen_and_taken_away_again(tab: Any) -> None:
    tab.get_by_role("button", name="take B away").click()
    tab.locator(".compared").first.wait_for(state="detached")
    tab.wait_for_selector("body[data-settled=true]", state="attached")
    assert "with=" not in tab.url
    tab.locator("header select").last.select_option("new")
    tab.locator(".compared tfoot").wait_for()


def test_the_critical_path_is_asked_for_by_a_key_and_says_why_there_is_none(tab: Any) -> None:
    tab.locator(".timeline canvas").focus()
    tab.keyboard.press("c")
    tab.locator(".status .cut", has_text="critical path").wait_for()
    tab.wait_for_selector("body[data-settled=true]", state="attached")
    assert "path=1" in tab.url
    tab.keyboard.press("c")
    tab.locator(".status .cut").wait_for(state="detached")


# The command.


def test_against_prints_the_address_of_the_page_with_both(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def runs_at_once(self: Any, sockets: Any) -> None:
        assert sockets

    monkeypatch.setattr(serving.uvicorn.Server, "run", runs_at_once)
    assert main(["view", str(two[0]), "--against", str(two[1]), "--no-browser"]) == 0
    place = urlsplit(capsys.readouterr().out.splitlines()[0])
    ids = [run["id"] for run in browsing(*two)[0].get("/api/runs").json()["runs"]]
    assert place.path == f"/run/{ids[0]}" and place.fragment == f"with={ids[1]}"
    assert place.query.startswith("token=")


def test_against_needs_one_run_and_another(two: tuple[Path, Path], tmp_path: Path) -> None:
    one = runs.found([str(two[0])], lambda paths, tell: Trace.open(Path(paths[0])))
    with pytest.raises(BadOption, match="one run below one other"):
        runs.beside(one, one)
    both = runs.found([str(two[0].parent)], lambda paths, tell: Trace.open(Path(paths[0])))
    with pytest.raises(BadOption, match="one run below one other"):
        runs.beside(one, both)
    assert main(["view", str(two[0]), "--against", str(tmp_path / "none"), "--no-browser"]) != 0


def test_a_replayed_run_says_that_it_was_never_measured(tmp_path: Path) -> None:
    trace = stored(tmp_path / "replayed")
    quality = [Quality(None, REPLAYED, 1, "loader=0ms", "warning")]
    write_manifest(
        tmp_path / "replayed", type(trace.manifest)(**{**_fields(trace.manifest), "quality": quality})
    )
    known = browsing(tmp_path / "replayed")[1]
    assert known["warnings"][0] == "Predicted: replayed with `loader=0ms`. These times were not measured."


def _fields(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}
