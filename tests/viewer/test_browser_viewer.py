"""The viewer's page in a browser, against a stand-in that says what `docs/viewer-protocol.md` promises."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stand_in import HOSTILE, KERNEL, LENGTH, STEP, ZERO, StandIn

COMPLETE = ".timeline canvas[data-complete=true]"
LEFT, TOP = 196, 34  # of the plot in the timeline, on a wide screen
WAIT = 60_000
SETTLED = "body[data-settled=true]"  # the address says all that was chosen
FOUND = ".tabs button:has-text('Findings 2')"
NUMBERS = count()


class Served:
    """A stand-in that answers, and pages of it: one for all tests that need no page of their own."""

    def __init__(self, browser: Any, run: StandIn) -> None:
        self.browser, self.run, self.said = browser, run, list[str]()
        self.server = run.serve()
        self.at = f"http://127.0.0.1:{self.server.server_port}/run/0123abcd"
        self.page: Any = None

    def open(self, hash_: str = "", **how: Any) -> Any:
        """A new page in a browser that knows nothing."""
        tab = self.browser.new_context(
            viewport={"width": 1400, "height": 800} | how.pop("viewport", {}), **how
        ).new_page()
        tab.set_default_timeout(WAIT)
        tab.on(
            "console", lambda message: message.type in ("error", "warning") and self.said.append(message.text)
        )
        tab.on("pageerror", lambda error: self.said.append(str(error)))
        tab.on("dialog", lambda dialog: self.said.append(dialog.message))
        tab.goto(f"{self.at}#{hash_}" if hash_ else self.at)
        tab.wait_for_selector(COMPLETE)
        tab.wait_for_selector(FOUND, state="attached")
        return tab

    def show(self, hash_: str = "", height: int = 800) -> Any:
        """The page that all tests share, at this place."""
        self.page = self.page or self.open()
        if self.page.viewport_size["height"] != height:
            self.page.set_viewport_size({"width": 1400, "height": height})
        go(self.page, hash_)
        return self.page


def go(tab: Any, hash_: str) -> None:
    """Follow a link within the page, and wait until it is drawn."""
    tab.evaluate(
        """(to) => new Promise((done) => {
            addEventListener('hashchange', done, { once: true });
            location.hash = to;
        })""",
        f"{hash_}&test={next(NUMBERS)}",  # a link that was followed before is followed again
    )
    drawn(tab)


def drawn(tab: Any) -> None:
    """Wait until all is drawn that was asked for, and the address says where that is."""
    tab.wait_for_selector(SETTLED, state="attached")
    tab.wait_for_selector(COMPLETE)


@pytest.fixture(scope="module")
def few(browser: Any) -> Iterator[Served]:
    served = Served(browser, StandIn(4))
    yield served
    served.server.shutdown()


@pytest.fixture(scope="module")
def many(browser: Any) -> Iterator[Served]:
    served = Served(browser, StandIn(1024))
    yield served
    served.server.shutdown()


@pytest.fixture
def tab(few: Served) -> Any:
    """The page of four ranks, the first open."""
    return few.show()


def state(tab: Any) -> dict[str, str]:
    """What stands behind the `#`, once it is written."""
    tab.wait_for_selector(SETTLED, state="attached")
    return {name: values[0] for name, values in parse_qs(urlsplit(tab.url).fragment).items()}


def until(tab: Any, holds: str) -> None:
    """Waits; the page's policy forbids what Playwright would evaluate in it for that."""
    for _ in range(WAIT // 50):
        if tab.evaluate(holds):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"{holds} never holds in {tab.url}")


def view(tab: Any) -> tuple[int, int]:
    said = state(tab)
    return int(said.get("from", ZERO)), int(said.get("to", ZERO + LENGTH))


def point(tab: Any, share: float, y: float) -> tuple[float, float]:
    """A place in the plot: a share of its width, and pixels below the timeline's top."""
    box = tab.locator(".timeline canvas").bounding_box()
    return box["x"] + LEFT + share * (box["width"] - LEFT), box["y"] + y


def color(tab: Any, share: float, y: float) -> tuple[int, int, int]:
    x, y = point(tab, share, y)
    box = tab.locator(".timeline canvas").bounding_box()
    found = tab.evaluate(
        """([x, y]) => {
            const drawn = document.querySelector('.timeline canvas').getContext('2d');
            return [...drawn.getImageData(x, y, 1, 1).data];
        }""",
        [x - box["x"], y - box["y"]],
    )
    return found[0], found[1], found[2]


COMPUTE, WAITING = (0x2F, 0x6F, 0xB3), (0xC4, 0x51, 0x1B)
RANKS = [TOP + 13, TOP + 26 + 2 + 2 * 19 + 38 + 2 + 13]  # middle of the rows of ranks 0 (open) and 1


# Keys


def test_w_and_s_zoom_at_the_pointer_and_a_and_d_pan(tab: Any) -> None:
    whole = view(tab)
    tab.mouse.move(*point(tab, 0.5, 200))
    tab.keyboard.press("w")
    near = view(tab)
    assert near[1] - near[0] < 0.8 * (whole[1] - whole[0])
    assert abs(sum(near) - sum(whole)) < 0.02 * LENGTH
    tab.keyboard.press("d")
    right = view(tab)
    assert right[0] > near[0] and abs((right[1] - right[0]) - (near[1] - near[0])) <= 2
    tab.keyboard.press("a")
    assert view(tab) == pytest.approx(near, abs=2)
    for _ in range(3):
        tab.keyboard.press("s")
    assert view(tab)[1] - view(tab)[0] >= LENGTH


def test_the_wheel_scrolls_rows_and_zooms_with_ctrl(few: Served) -> None:
    tab = few.show("open=0,1,2,3&height=64", height=330)
    tab.mouse.move(*point(tab, 0.25, 100))
    tab.mouse.wheel(0, 120)
    assert int(state(tab)["y"]) == 120
    before = view(tab)
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -400)
    tab.keyboard.up("Control")
    after = view(tab)
    assert after[1] - after[0] < before[1] - before[0]
    at = before[0] + 0.25 * (before[1] - before[0])
    assert after[0] + 0.25 * (after[1] - after[0]) == pytest.approx(at, abs=0.01 * LENGTH)


def test_shift_and_drag_pans(tab: Any) -> None:
    for _ in range(4):
        tab.keyboard.press("w")
    before = view(tab)
    tab.mouse.move(*point(tab, 0.6, 300))
    tab.keyboard.down("Shift")
    tab.mouse.down()
    tab.mouse.move(*point(tab, 0.4, 300), steps=3)
    tab.mouse.up()
    tab.keyboard.up("Shift")
    after = view(tab)
    assert after[0] - before[0] == pytest.approx(0.2 * (before[1] - before[0]), rel=0.05)
    assert "range" not in state(tab)


def test_marks_are_set_and_taken_away(tab: Any) -> None:
    tab.mouse.move(*point(tab, 0.5, 200))
    tab.keyboard.press("m")
    assert int(state(tab)["marks"]) == pytest.approx(ZERO + LENGTH / 2, abs=LENGTH / 20)
    tab.keyboard.press("m")
    assert "marks" not in state(tab)


def test_q_hides_the_panel_and_a_question_mark_lists_the_keys(tab: Any) -> None:
    tab.keyboard.press("q")
    tab.wait_for_selector(".panel", state="detached")
    assert state(tab)["drawer"] == "0"
    tab.keyboard.press("?")
    keys = tab.get_by_role("dialog", name="Keys")
    keys.wait_for()
    assert {"W", "Esc", "/", "Ctrl wheel", "R"} <= set(keys.locator("kbd").all_inner_texts())
    tab.keyboard.press("Escape")
    keys.wait_for(state="detached")


def test_rows_are_walked_opened_and_pinned_by_keys_alone(tab: Any) -> None:
    for _ in range(2):
        tab.keyboard.press("ArrowDown")
    assert state(tab)["row"] == "t4"
    assert "stream 7" in tab.locator("#status").inner_text()
    tab.keyboard.press("p")
    assert state(tab)["pin"] == "t4"
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Enter")
    said = state(tab)
    assert said["row"] == "r0" and "open" not in said and said["pin"] == "t4"


def test_full_stop_and_comma_go_through_the_events_of_a_track(tab: Any) -> None:
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    go(tab, f"from={ZERO}&to={ZERO + 9 * KERNEL}&row=t4")
    tab.keyboard.press(".")
    until(tab, "location.hash.includes('event=4,4')")
    tab.keyboard.press(".")
    until(tab, "location.hash.includes('event=4,5')")
    tab.keyboard.press(",")
    until(tab, "location.hash.includes('event=4,4')")
    tab.keyboard.press("f")
    tab.keyboard.press("f")
    fitted = view(tab)
    assert fitted[1] - fitted[0] == pytest.approx(KERNEL / 0.8, rel=0.01)
    tab.keyboard.press("r")
    assert state(tab)["range"] == f"{ZERO + 4 * KERNEL},{ZERO + 5 * KERNEL}"
    tab.keyboard.press("Escape")
    assert not {"range", "event"} & set(state(tab))


def test_a_track_and_a_command_are_found_by_letters(tab: Any) -> None:
    tab.keyboard.press("Control+p")
    tab.keyboard.type("0 stream")  # at once: no letter is lost to what opens
    assert tab.get_by_role("dialog", name="Find a track").get_by_role("option").count() == 1
    tab.keyboard.press("Enter")
    assert state(tab)["row"] == "t4"
    tab.keyboard.press("Control+Shift+P")
    tab.keyboard.type("row below")
    tab.get_by_role("option", name="row below").wait_for()
    tab.keyboard.press("Enter")
    assert state(tab)["row"] == "t5"


# What is drawn


def test_shares_are_heights_that_keep_their_colours(tab: Any) -> None:
    go(tab, f"from={ZERO}&to={ZERO + STEP}&open=0")
    row = TOP + 13
    assert color(tab, 0.5, row) == COMPUTE
    assert color(tab, 0.7, row) == WAITING
    # In the whole run a pixel of the plot holds a tenth of a step or so; the area of a colour is its time.
    go(tab, f"from={ZERO}&to={ZERO + LENGTH}&open=0&height=64")
    pixels = tab.evaluate(
        """([left, top]) => {
            const canvas = document.querySelector('.timeline canvas');
            const { data } = canvas.getContext('2d').getImageData(left, top, canvas.width - left, 64);
            const found = new Map();
            for (let i = 0; i < data.length; i += 4) {
                const key = [...data.slice(i, i + 3)].join();
                found.set(key, (found.get(key) ?? 0) + 1);
            }
            return [...found].sort((a, b) => b[1] - a[1]);
        }""",
        [LEFT, TOP],
    )
    share = {key: count / sum(count for _, count in pixels) for key, count in pixels}
    assert share[",".join(map(str, COMPUTE))] == pytest.approx(0.6, abs=0.03)
    assert share[",".join(map(str, WAITING))] == pytest.approx(0.35, abs=0.03)


def test_single_events_have_names_and_the_page_says_how_many_it_shows(few: Served) -> None:
    few.run.most_events = 7
    tab = few.open(f"from={ZERO}&to={ZERO + 40 * KERNEL}&open=0")
    tab.wait_for_selector(".cut")
    assert re.match(r"7 of \d+ events shown", tab.locator(".cut").inner_text())
    few.run.most_events = 20_000
    tab = few.open(f"from={ZERO}&to={ZERO + 40 * KERNEL}&open=0")
    assert tab.locator(".cut").count() == 0


def test_a_thousand_ranks_are_rows_of_a_pixel_and_only_those_in_view_are_drawn(many: Served) -> None:
    many.run.asked.clear()
    tab = many.show()
    status = tab.locator(".status").inner_text()
    shown = re.search(r"(\d+) of 1,024 ranks in view", status)
    assert shown is not None and 500 < int(shown[1]) < 1024
    asked = [path for path in many.run.asked if "/tile/" in path]
    assert len(asked) < 60
    tab.keyboard.press("q")
    tab.get_by_label("Higher rows").click()
    assert state(tab)["height"] == "2"
    go(tab, f"from={ZERO}&to={ZERO + STEP}&height=1")
    # The last rank computes a fifth of the step longer.
    assert color(tab, 0.62, TOP + 3) == WAITING
    tab.mouse.move(*point(tab, 0.5, 100))
    tab.mouse.wheel(0, 5000)
    drawn(tab)
    box = tab.locator(".timeline canvas").bounding_box()
    assert color(tab, 0.62, box["height"] - 8) == COMPUTE


def test_rows_are_grouped_and_sorted(many: Served) -> None:
    tab = many.show("height=16")
    tab.get_by_label("group").select_option("node")
    tab.get_by_label("sort").select_option("step ledger: time")
    said = state(tab)
    assert (said["group"], said["sort"]) == ("host", "late")
    for _ in range(2):
        tab.keyboard.press("ArrowDown")
    assert state(tab)["row"] == "r7"  # under the header of node 0, the rank with most


# Findings, ranges, events, search


def test_a_finding_leads_to_its_evidence(tab: Any) -> None:
    tab.locator(".claim").first.click()
    said = state(tab)
    assert said["finding"] == "rank-arrives-last"
    assert said["range"] == f"{ZERO + 40 * STEP},{ZERO + 41 * STEP}" and said["rows"] == said["row"] == "r3"
    seen = view(tab)
    assert seen[0] < ZERO + 40 * STEP < ZERO + 41 * STEP < seen[1] < ZERO + 45 * STEP
    more = tab.locator(".more").inner_text()
    assert "at most 9.000 ms per step" in more and "lostflops explain communication-imbalance" in more
    tab.locator(".claim").last.click()
    assert "No one place in the timeline shows it." in tab.locator(".more").inner_text()


def test_a_dragged_range_has_an_exact_ledger_and_edges_that_move(tab: Any) -> None:
    tab.mouse.move(*point(tab, 0.2, RANKS[1]))
    tab.mouse.down()
    tab.mouse.move(*point(tab, 0.4, RANKS[1] + 3), steps=4)
    tab.mouse.up()
    tab.wait_for_selector(".sums tfoot")
    start, end = map(int, state(tab)["range"].split(","))
    assert state(tab)["rows"] == "r1"
    assert tab.locator(".sums tfoot td").inner_text() == f"{end - start:,} ns"
    parts = [
        int(title.split()[0].replace(",", ""))
        for title in tab.locator(".sums tbody [title]").evaluate_all("all => all.map(one => one.title)")
    ]
    assert sum(parts[:3]) == end - start
    assert "1 of 812 names shown" in tab.locator(".body").inner_text()
    tab.mouse.move(*point(tab, 0.4, RANKS[1]))
    tab.mouse.down()
    tab.mouse.move(*point(tab, 0.6, RANKS[1]), steps=3)
    tab.mouse.up()
    moved = [int(part) for part in state(tab)["range"].split(",")]
    assert moved[0] == start and moved[1] - start == pytest.approx(2 * (end - start), rel=0.1)


def test_a_clicked_event_is_explained(few: Served) -> None:
    tab = few.show(f"from={ZERO}&to={ZERO + 10 * KERNEL}&open=0")
    tab.mouse.click(*point(tab, 0.35, TOP + 26 + 2 + 8))
    tab.get_by_role("button", name="launch").wait_for()
    assert tab.locator(".body h2.name").inner_text() == HOSTILE
    body = tab.locator(".body").inner_text()
    assert "1,000,000 ns" in body and "lostflops explain kernel-summary" in body and "Linked" in body
    assert state(tab)["event"] == "4,3"
    tab.get_by_role("button", name="launch").click()
    until(tab, "location.hash.includes('event=4,0') || location.hash.includes('event=5,0')")


def test_the_search_counts_all_hits_and_goes_to_the_next(tab: Any) -> None:
    tab.keyboard.press("/")
    tab.keyboard.insert_text("GEMM_")  # at once: what is asked after a pause begins anew with its hits
    tab.locator(".search .count", has_text="500").wait_for()
    tab.keyboard.press("Enter")
    until(tab, "location.hash.includes('event=4,0')")
    for row in range(2, 12, 2):  # five are listed at a time
        tab.keyboard.press("Enter")
        until(tab, f"location.hash.includes('event=4,{row}')")
    assert tab.locator(".search .count").inner_text() == "6 of 500"
    said = state(tab)
    assert said["q"] == "GEMM_" and said["tab"] == "search" and said["row"] == "t4"
    tab.keyboard.press("Escape")
    assert "q" not in state(tab)


# Links, themes, sizes, hostile names


def test_a_link_restores_the_view(few: Served) -> None:
    given = (
        f"from={ZERO + STEP}&to={ZERO + 3 * STEP}&height=20&sort=late&open=1,2&pin=t4&row=r2"
        f"&range={ZERO + STEP},{ZERO + 2 * STEP}&rows=r2,r3&event=4,7&marks={ZERO + 7}"
        "&q=forward&drawer=1&tab=range"
    )
    tab = few.show(given)
    said = state(tab)
    wanted = {name: values[0] for name, values in parse_qs(given).items()} | {"drawer": "1"}
    assert said | {"drawer": "1"} == wanted
    assert tab.locator(".search input").input_value() == "forward"


def test_a_link_of_the_report_leads_to_a_rank_and_a_window(few: Served) -> None:
    tab = few.show(f"from={ZERO + STEP}&to={ZERO + 2 * STEP}&rank=3&finding=rank-arrives-last")
    said = state(tab)
    assert said["row"] == "r3" and said["open"] == "3" and said["finding"] == "rank-arrives-last"
    assert view(tab) == (ZERO + STEP, ZERO + 2 * STEP)
    assert "range" in state(few.open("finding=rank-arrives-last")), "as the report's link has it"
    go(tab, "finding=rank-arrives-last")
    until(tab, "location.hash.includes('range=')")


def test_nonsense_in_a_link_is_left_out(few: Served) -> None:
    tab = few.show(
        "from=9&to=3&open=77,x&row=zz&event=1&range=5&height=-4&group=x&sort=%3Cb%3E&marks=a&tab=no&pin=t999,r77"
    )
    assert view(tab) == (ZERO, ZERO + LENGTH)
    tab.keyboard.press("w")
    assert view(tab) != (ZERO, ZERO + LENGTH)


def test_no_text_of_a_run_is_ever_markup(browser: Any) -> None:
    served = Served(browser, StandIn(2, hostile=True))
    tab = served.open(
        f"from={ZERO}&to={ZERO + 10 * KERNEL}&open=0&event=2,1&tab=event&group=host&sort=late&q=gemm"
        f"&range={ZERO},{ZERO + STEP}&pin=t2"
    )
    tab.locator(".body h2.name", has_text="<img").wait_for()
    for name in ("Event", "Range", "Search", "Run", "Findings"):
        tab.get_by_role("tab", name=name).click()
        tab.locator(".body", has_text="<img").wait_for()
        for claim in tab.locator(".claim").all():
            claim.click()
    go(tab, f"from={ZERO}&to={ZERO + 10 * KERNEL}&open=0")
    tab.mouse.move(*point(tab, 0.35, TOP + 26 + 2 + 8))
    tab.locator(".tip", has_text="<img").wait_for()
    tab.keyboard.press("Control+p")
    assert "<script>" in tab.get_by_role("dialog").get_by_role("option").last.inner_text()
    only_ours(tab, served)
    tab.goto(served.at.partition("/run")[0])
    tab.locator("main.index td").first.wait_for()
    assert "<img" in tab.locator("main.index small.warn").inner_text()
    only_ours(tab, served)
    served.server.shutdown()


def only_ours(tab: Any, served: Served) -> None:
    """No element that the page does not make itself, no dialog, no error, and no complaint of its policy."""
    assert tab.locator("img, iframe, object, embed, svg").count() == 0 and tab.locator("script").count() == 1
    assert tab.evaluate("[...document.querySelectorAll('*')].every((one) => !one.onerror && !one.onclick)")
    assert served.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_follow_the_system_until_one_is_chosen(few: Served, scheme: str) -> None:
    paper = {"light": "rgb(253, 252, 250)", "dark": "rgb(20, 24, 28)"}
    other = "dark" if scheme == "light" else "light"
    tab = few.open(color_scheme=scheme)
    shown = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(shown) == paper[scheme]
    tab.keyboard.press("t")
    until(tab, f"{shown} === '{paper[other]}'")
    tab.reload()
    tab.wait_for_selector(COMPLETE)
    assert tab.evaluate(shown) == paper[other]


def test_a_phone_shows_it_without_scrolling_sideways_and_fingers_pan(few: Served) -> None:
    tab = few.open(
        f"from={ZERO}&to={ZERO + 20 * STEP}",
        viewport={"width": 390, "height": 844},
        has_touch=True,
        is_mobile=True,
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    box = tab.locator(".timeline canvas").bounding_box()
    assert box["height"] > 200
    session = tab.context.new_cdp_session(tab)
    at = {"y": box["y"] + 60}
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": 300, **at}]})
    for x in (280, 240, 200):
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, **at}]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert view(tab)[0] > ZERO + STEP


def test_everything_that_acts_has_a_name(few: Served) -> None:
    tab = few.open()
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll('button, input, select, a, canvas')].filter((one) =>
            !(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length)).length"""
    )
    assert nameless == 0
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "mark"


WEB = Path(__file__).parents[2] / "web"
NODE = shutil.which("node")


@pytest.mark.skipif(
    NODE is None or not (WEB / "node_modules").is_dir(), reason="needs Node and `npm ci` in web/"
)
def test_the_types_of_the_sources_fit() -> None:
    # What fitted the last time is not looked at again.
    known = ["--incremental", "--tsBuildInfoFile", "node_modules/.cache/types.json"]
    tsc = [str(NODE), "node_modules/typescript/bin/tsc", "--noEmit", *known]
    done = subprocess.run(tsc, cwd=WEB, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
