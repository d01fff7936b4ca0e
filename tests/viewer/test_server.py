"""The server says exactly what the run holds, to whoever may ask, and nothing to anybody else."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from starlette.testclient import TestClient

from lostflops.errors import CannotServe
from lostflops.viewer.server import runs, serving
from lostflops.viewer.server.guard import Keys
from viewed import HOSTILE, browsing, job, listed, planes, served, stored


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "base"
    stored(folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> tuple[TestClient, dict[str, Any], str, str]:
    """A browser, what it knows of the run, and where the run's questions and its data are."""
    browser, known = browsing(run)
    return browser, known, f"/api/run/{known['id']}", f"/data/{known['id']}/{known['hash']}"


def test_the_page_knows_every_lane_with_its_exact_total(page: Any) -> None:
    browser, known, ask, _ = page
    lanes = known["lanes"]
    assert sum(lanes["busy_ns"]) == known["busy_ns"]
    assert [sum(each) for each in lanes["totals_ns"]] == lanes["busy_ns"]
    assert sum(lanes["num_events"]) == known["num_events"]
    assert lanes["busy_ns"][:2] == [230, 230], "the state lanes cover their ranks"
    whole = browser.get(f"{ask}/range").json()
    assert [lane["busy_ns"] for lane in whole["lanes"]] == lanes["busy_ns"]
    assert whole["ledger"]["ns"] == 460 == sum(a["ns"] for a in whole["ledger"]["accounts"])
    assert known["groupings"][0]["names"] == ["node 0", "node 1"]
    assert known["steps"]["step"] == [3, 4, 3, 4] and known["ranks"]["gpu"] == ["H100", "H100"]


def test_a_range_is_cut_at_its_edges_and_its_names_add_up(page: Any) -> None:
    browser, known, ask, _ = page
    lane = known["tracks"]["first_lane"][known["tracks"]["title"].index("stream 7")]
    answer = browser.get(f"{ask}/range?from=25&to=50&lanes={lane}-{lane + 1}").json()
    gemm, add = answer["lanes"]
    assert (gemm["busy_ns"], gemm["num_events"], add["busy_ns"]) == (25, 1, 5)
    assert [(n["name"], n["ns"], n["num_events"]) for n in answer["names"]] == [
        (HOSTILE, 25, 1),
        ("add", 5, 1),
    ]
    assert answer["ledger"]["ranks"] == 1 and answer["ledger"]["ns"] == 25


def test_tiles_show_what_ran_and_can_be_kept_for_ever(page: Any) -> None:
    browser, known, _, data = page
    lane = known["tracks"]["first_lane"][known["tracks"]["title"].index("stream 7")]
    finest = known["levels"]["finest"]
    answer = browser.get(f"{data}/tile/{finest}/0?lanes={lane}-{lane + 1}")
    assert "immutable" in answer.headers["cache-control"]
    width = known["levels"]["base_width"] * 4**finest
    assert width in (1, 2)
    found = planes(answer.content)
    gemm = [c["key"] for c in known["categories"]].index("family:gemm")
    drawn = [share for share in found[lane, gemm] for _ in range(width)]
    assert drawn[20:50] == [255] * 30 and drawn[50:119] == [0] * 69
    assert set(found) == {(lane, gemm), (lane + 1, gemm + 1)}, "planes in which nothing runs are left out"
    top = planes(browser.get(f"{data}/tile/{finest}/0?lanes={lane}&top=1").content)[lane, 0]
    assert top[20 // width] == gemm and top[256 + 20 // width] == 255 and top[0] == 255 and top[256] == 0


def test_events_say_how_many_there_are_and_show_the_longest(page: Any) -> None:
    browser, known, _, data = page
    lane = known["tracks"]["first_lane"][known["tracks"]["title"].index("stream 7")]
    head, rows = listed(browser.get(f"{data}/events?lanes={lane}-{lane + 1}").content)
    assert (head["shown"], head["total"]) == (4, 4)
    assert [row[:4] for row in rows] == [
        (20, 30, 0, HOSTILE),
        (120, 30, 1, HOSTILE),
        (45, 8, 0, "add"),
        (145, 8, 1, "add"),
    ]
    head, rows = listed(browser.get(f"{data}/events?lanes={lane}-{lane + 1}&limit=3").content)
    assert (head["shown"], head["total"], [row[1] for row in rows[:2]]) == (3, 4, [30, 30])
    head, rows = listed(browser.get(f"{data}/events?lanes={lane}&from=49&to=50").content)
    assert [row[:3] for row in rows] == [(20, 30, 0)]
    head, rows = listed(browser.get(f"{data}/events?lanes={lane}&from=50&to=120").content)
    assert rows == [] and head["total"] == 0


def test_an_event_comes_with_all_that_was_recorded_of_it(page: Any) -> None:
    browser, known, ask, _ = page
    lane = known["tracks"]["first_lane"][known["tracks"]["title"].index("stream 7")]
    found = browser.get(f"{ask}/event/{lane}/1").json()
    assert (found["name"], found["start"], found["end"], found["previous"], found["next"]) == (
        HOSTILE,
        120,
        150,
        0,
        None,
    )
    fields = {field["name"]: field["value"] for field in found["fields"]}
    assert fields["operator"] == "aten::mm" and fields["family"] == "gemm" and fields["stream"] == "7"
    thread = known["tracks"]["first_lane"][known["tracks"]["title"].index("thread 7 (main)")]
    call = browser.get(f"{ask}/event/{thread + 2}/0").json()
    assert [outer["name"] for outer in call["around"]] == ["forward", "aten::mm"]
    state = browser.get(f"{ask}/at?lane=0&time=30").json()
    assert state["account"] == "compute" and "kernel" in state["fields"][0]["value"]
    assert browser.get(f"{ask}/event/{lane}/2").status_code == 404
    assert browser.get(f"{ask}/at?lane=0&time=231").status_code == 404


def test_arrows_lead_from_launch_to_kernel_forward_to_backward_and_rank_to_rank(page: Any) -> None:
    browser, known, ask, _ = page
    first = dict(
        zip(known["tracks"]["title"], known["tracks"]["first_lane"], strict=True)
    )  # of rank 1: the last
    kernel = browser.get(f"{ask}/arrows/{first['stream 7']}/0").json()["arrows"]
    call = {"lane": first["thread 7 (main)"] + 2, "row": 0, "time": 13}
    assert kernel == [
        {"kind": "launch", "from": call, "to": {"lane": first["stream 7"], "row": 0, "time": 20}}
    ]
    assert browser.get(f"{ask}/arrows/{call['lane']}/0").json()["arrows"] == kernel
    forward = browser.get(f"{ask}/arrows/{first['thread 7 (main)'] + 1}/0").json()["arrows"]
    assert [(a["kind"], a["from"]["time"], a["to"]["time"]) for a in forward] == [("backward", 16, 30)]
    across = browser.get(f"{ask}/arrows/{first['collectives of group 0 [0, 1]']}/0").json()
    assert [a["kind"] for a in across["arrows"]] == ["collective"] and across["total"] == 1
    assert across["arrows"][0]["to"]["time"] == 50


def test_collectives_stand_across_ranks_with_their_waits(page: Any) -> None:
    browser, _, ask, _ = page
    answer = browser.get(f"{ask}/collectives?from=0&to=100").json()
    assert (answer["total"], answer["shown"]) == (1, 1)
    (only,) = answer["collectives"]
    assert [(p["rank"], p["start"], p["wait_ns"]) for p in only["parts"]] == [(0, 50, 20), (1, 70, 0)]
    assert browser.get(f"{ask}/collectives?limit=1").json() | {"collectives": 0} == {
        "total": 2,
        "shown": 1,
        "collectives": 0,
    }


def test_search_goes_over_the_whole_run_and_on_from_where_it_stopped(page: Any) -> None:
    browser, known, ask, data = page
    answer = browser.get(f"{ask}/search", params={"q": "CUDALAUNCH", "limit": 5}).json()
    assert (answer["total"], answer["names_total"], answer["shown"]) == (12, 1, 5)
    seen = [(hit["start"], hit["rank"]) for hit in answer["hits"]]
    while answer["next"] is not None:
        more = {"q": "cudalaunch", "limit": 5, "after": answer["next"], "skip": answer["skip"]}
        answer = browser.get(f"{ask}/search", params=more).json()
        seen += [(hit["start"], hit["rank"]) for hit in answer["hits"]]
    calls = list(job()["launches"])
    assert seen == sorted((row["start"], row["rank"]) for row in calls)
    density = browser.get(f"{data}/density/{known['levels']['coarsest']}/0?q=cudalaunch")
    assert sum(share > 0 for share in planes(density.content)[0xFFFFFFFF, 0]) > 0
    nothing = browser.get(f"{ask}/search?q=nowhere").json()
    assert (nothing["total"], nothing["hits"], nothing["next"]) == (0, [], None)


def test_counters_come_as_least_mean_and_most(page: Any) -> None:
    browser, known, _, data = page
    which = known["counters"]["title"].index("SM active of GPU 0")
    level = known["levels"]["coarsest"]
    content = browser.get(f"{data}/counter/{level}/0?counters={which}").content
    assert content[:4] == b"LFC1" and struct.unpack_from("<I", content, 32) == (which,)
    least, mean, most = (struct.unpack_from("<256f", content, 36 + 1024 * n) for n in range(3))
    width = known["levels"]["base_width"] * 4**level
    values = [float((t // 10) % 4) for t in range(200)]
    for bucket in range(200 // width):
        part = values[bucket * width : (bucket + 1) * width]
        assert (least[bucket], most[bucket]) == (min(part), max(part))
        assert mean[bucket] == pytest.approx(sum(part) / len(part))
    assert least[255] != least[255], "no sample, no number"


def test_rows_can_be_sorted_by_any_recipe_that_counts_by_rank(page: Any) -> None:
    browser, known, ask, _ = page
    assert "step_ledger.ns" in [sorting["key"] for sorting in known["sortings"]]
    assert browser.get(f"{ask}/sort?by=step_ledger.ns").json()["values"] == [200, 200]
    assert browser.get(f"{ask}/sort?by=step_ledger.step").status_code == 400
    assert browser.get(f"{ask}/sort?by=no_such.ns").status_code == 422


def test_findings_lead_to_where_their_evidence_is(page: Any) -> None:
    browser, _, ask, _ = page
    answer = browser.get(f"{ask}/findings").json()
    assert answer["verdict"]
    windows = [w for finding in answer["findings"] for w in finding["windows"]]
    assert windows and all(w["end"] > w["start"] and w["lane"] == w["rank"] for w in windows)


def test_a_table_goes_to_a_notebook_as_arrow(page: Any) -> None:
    browser, _, _, data = page
    answer = browser.get(f"{data}/table/kernels.arrow?from=0&to=60&ranks=1")
    rows = pl.read_ipc_stream(io.BytesIO(answer.content))
    assert rows["name"].to_list() == [HOSTILE, "add"] and answer.headers["x-rows"] == "2/2"
    few = browser.get(f"{data}/table/kernels.arrow?limit=1")
    assert few.headers["x-rows"] == "1/12"
    assert browser.get(f"{data}/table/secrets.arrow").status_code == 404


def test_two_runs_are_laid_beside_each_other_by_step(run: Path, tmp_path: Path) -> None:
    rows = job()
    rows["steps"] = [row | {"start": row["start"] + 5, "step": row["step"] + 40} for row in rows["steps"]]
    stored(tmp_path / "new", rows)
    browser, _ = browsing(run, tmp_path / "new")
    a, b = (line["id"] for line in browser.get("/api/runs").json()["runs"])
    answer = browser.get(f"/api/compare?a={a}&b={b}").json()
    assert answer["steps"][0] == {"step_a": 3, "step_b": 43, "a": [10, 110], "b": [15, 110]}
    assert browser.get("/").text.count('data-page="index"') == 1
    assert browser.get("/run/ffff").status_code == 404


@pytest.mark.parametrize(
    "asked",
    [
        "tile/0/0",
        "tile/0/0?lanes=",
        "tile/0/0?lanes=0-9999999",
        "tile/0/0?lanes=99999",
        "tile/0/0?lanes=3-1",
        "tile/0/99999?lanes=0",
        "tile/0/-1?lanes=0",
        "tile/99/0?lanes=0",
        "tile/-99/0?lanes=0",
        "tile/x/0?lanes=0",
        "events?lanes=0&limit=999999999",
        "events?lanes=0&from=9&to=1",
        "events?lanes=0&from=1e9",
        "counter/0/0",
        "counter/0/0?counters=77",
        "density/0/0",
    ],
)
def test_what_makes_no_sense_or_is_too_much_is_refused_in_words(page: Any, asked: str) -> None:
    browser, _, _, data = page
    answer = browser.get(f"{data}/{asked}")
    assert answer.status_code == 400 and answer.json()["error"]["kind"] == "bad-request"


# Who may ask.


def test_a_token_opens_one_session_and_no_second(run: Path) -> None:
    keys = Keys(8000)
    token = keys.token()
    first = served(run, keys=keys)
    opened = first.get(f"/?token={token}&from=7")
    assert (opened.status_code, opened.headers["location"]) == (303, "/?from=7")
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and cookie.startswith("lostflops-8000=")
    assert first.get("/api/runs").status_code == 200
    assert token not in first.cookies["lostflops-8000"]
    again = served(run, keys=keys)
    assert again.get(f"/?token={token}").status_code == 403
    assert again.get("/?token=guess").status_code == 403
    assert first.get(f"/?token={token}").status_code == 303, "the same browser may reload it"


def test_another_user_of_the_machine_gets_nothing(run: Path, page: Any) -> None:
    _, known, ask, data = page
    stranger = served(run)
    for url in ("/api/runs", ask, f"{ask}/range", f"{data}/tile/0/0?lanes=0"):
        answer = stranger.get(url)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (401, "no-session")
    for url in ("/", f"/run/{known['id']}", "/assets/viewer.js"):
        answer = stranger.get(url)
        assert answer.status_code == 401 and known["title"] not in answer.text
    stranger.cookies["lostflops-8000"] = "guess"
    assert stranger.get("/api/runs").status_code == 401
    assert stranger.get("/api/runs", headers={"Authorization": "Bearer guess"}).status_code == 401


def test_a_script_may_send_the_cookie_s_value_as_a_bearer_token(run: Path) -> None:
    keys = Keys(8000)
    secret = keys.exchanged(keys.token())
    assert (
        served(run, keys=keys).get("/api/runs", headers={"Authorization": f"Bearer {secret}"}).status_code
        == 200
    )


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "", "a b"]
)
def test_a_foreign_host_is_refused_also_with_a_session(page: Any, host: str) -> None:
    browser, *_ = page
    answer = browser.get("/api/runs", headers={"Host": host})
    assert answer.status_code == 400 and "name" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "LOCALHOST", "[::1]:8000"])
def test_own_names_at_any_port_are_answered_as_through_a_tunnel(page: Any, host: str) -> None:
    browser, _, ask, _ = page
    secret = browser.cookies["lostflops-8000"]
    headers = {"Host": host, "Authorization": f"Bearer {secret}"}
    assert browser.get(ask, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.example"},
     {"Origin": "http://localhost:9"}, {"Origin": "null"}],
)  # fmt: skip
def test_the_page_of_another_site_gets_nothing_also_from_another_port(
    page: Any, headers: dict[str, str]
) -> None:
    browser, _, ask, _ = page
    assert browser.get(ask, headers=headers).status_code == 403
    assert browser.get(ask, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_a_link_from_elsewhere_opens_a_page_that_goes_on_by_itself(run: Path) -> None:
    keys = Keys(8000)
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answer = served(run, keys=keys).get(f'/?token={keys.token()}&x="><script>', headers=headers)
    assert (
        answer.status_code == 200 and 'http-equiv="refresh"' in answer.text and "<script>" not in answer.text
    )


@pytest.mark.parametrize("token_path", ["//evil.example", "/\\evil.example", "///evil.example/x"])
def test_the_token_never_leads_to_another_host(run: Path, token_path: str) -> None:
    keys = Keys(8000)
    answer = served(run, keys=keys).get(f"http://localhost:8000{token_path}?token={keys.token()}")
    place = answer.headers["location"]
    assert place.startswith("/") and not place.startswith("//") and "evil" in place
    assert "\\" not in place


def test_nothing_can_be_written(page: Any) -> None:
    browser, _, ask, _ = page
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert browser.request(method, ask).status_code == 405


def test_every_answer_carries_its_protection(page: Any) -> None:
    browser, known, ask, data = page
    for url in (
        "/",
        f"/run/{known['id']}",
        ask,
        f"{data}/tile/0/0?lanes=0",
        "/assets/viewer.js",
        "/nowhere",
        f"{ask}/at?lane=x",
    ):
        answer = browser.get(url)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy and "default-src 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
    text = browser.get(f"/run/{known['id']}").text
    assert "<script>" not in text and "style=" not in text and " on" not in text.replace(" only", "")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/%2e%2e/app.py",
        "/assets/..%2f..%2fapp.py",
        "/assets/%2fetc%2fpasswd",
        "/assets//etc/passwd",
        "/assets/viewer.js%00.css",
        "/run/..%2f..%2fetc%2fpasswd",
        "/api/run/..%2f..%2f",
        "/data/..%2f..%2f/x/events",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_no_path_in_a_url_reaches_the_disk(page: Any, path: str) -> None:
    browser, *_ = page
    answer = browser.get(f"http://localhost:8000{path}")
    assert answer.status_code == 404 and "root:" not in answer.text and "import" not in answer.text


def test_a_name_of_a_run_never_becomes_markup(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    stored(folder)
    browser, known = browsing(folder)
    assert known["title"] == "<script>alert(1)<"
    page = browser.get(f"/run/{known['id']}")
    assert "alert" not in page.text and page.headers["content-type"].startswith("text/html")
    assert browser.get("/api/runs").headers["content-type"] == "application/json"


def test_answers_are_compressed_only_when_the_page_asks(page: Any) -> None:
    browser, _, ask, _ = page
    assert "content-encoding" not in browser.get(ask, headers={"Accept-Encoding": "gzip"}).headers
    packed = browser.get(ask, headers={"Accept-Encoding": "gzip", "X-Compress": "1"})
    assert packed.headers["content-encoding"] == "gzip" and gzip.compress(packed.content)
    assert packed.json() == browser.get(ask).json()


# A run that changes while it is served.


def test_a_run_that_is_another_now_says_so_and_can_be_loaded_again(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    browser, known = browsing(tmp_path / "run")
    data = f"/data/{known['id']}/{known['hash']}/tile/0/0?lanes=0"
    assert browser.get(data).status_code == 200
    shutil.rmtree(tmp_path / "run")
    rows = job()
    rows["operators"].append({"rank": 0, "thread": 7, "start": 260, "end": 270, "name": "new"})
    stored(tmp_path / "run", rows)
    answer = browser.get(data)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (409, "run-changed")
    while (again := browser.get(f"/api/run/{known['id']}")).status_code == 202:
        pass
    assert again.json()["hash"] != known["hash"] and again.json()["end"] == 270
    assert browser.get(data).status_code == 409, "the old address is not the new run"
    assert browser.get(data.replace(known["hash"], again.json()["hash"])).status_code == 200


def test_a_run_that_vanishes_says_so(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    browser, known = browsing(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    for url in (f"/api/run/{known['id']}", f"/data/{known['id']}/{known['hash']}/events?lanes=0"):
        answer = browser.get(url)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (410, "run-vanished")


def test_a_table_that_was_lost_meanwhile_is_told_and_the_rest_still_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kept in ("KEPT_AT_ONCE", "KEPT_AT_MOST"):  # larger tables are read when they are asked for
        monkeypatch.setattr(f"lostflops.store.trace.{kept}", 0)
    stored(tmp_path / "run")
    browser, known = browsing(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "kernels")
    lane = known["tracks"]["first_lane"][known["tracks"]["title"].index("stream 7")]
    answer = browser.get(f"/api/run/{known['id']}/event/{lane}/0")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (422, "cannot-read")
    assert "kernels" in answer.json()["error"]["message"]
    assert browser.get(f"/data/{known['id']}/{known['hash']}/tile/0/0?lanes={lane}").status_code == 200


def test_a_run_that_cannot_be_read_is_told_and_looked_at_again(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    manifest = tmp_path / "run" / "run.json"
    good = manifest.read_bytes()
    manifest.write_bytes(good.replace(b"made up", b"made UP"))
    with pytest.raises(AssertionError, match="cannot-read"):
        browsing(tmp_path / "run")
    manifest.write_bytes(good)
    assert browsing(tmp_path / "run")[1]["title"] == "run"


def test_a_folder_of_runs_gives_a_page_that_lists_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        stored(tmp_path / name)
    (tmp_path / "notes").mkdir()
    found = runs.found([str(tmp_path)], lambda paths, tell: pytest.fail("nothing is opened yet"))
    assert [line["title"] for line in found.listed()["runs"]] == ["a", "b"]
    assert {line["ranks"] for line in found.listed()["runs"]} == {None}


# The command.


def test_the_command_prints_its_address_first_and_ends_at_ctrl_c(run: Path) -> None:
    command = [sys.executable, "-m", "lostflops", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout and started.stderr
        place = started.stdout.readline().strip()
        assert place.startswith("http://127.0.0.1:") and "/?token=" in place
        import httpx

        with httpx.Client(follow_redirects=True) as browser:
            assert 'data-page="run"' in browser.get(place).text
            assert httpx.get(place).status_code == 403, "it works once"
        started.send_signal(signal.SIGINT)
        assert started.wait(20) == 0
        assert started.stderr.read() == "" and "Ctrl-C" in started.stdout.read()


def test_ctrl_c_gives_up_what_is_still_computed_without_a_word(run: Path) -> None:
    slow = (
        "import sys, time; from lostflops.viewer import overview; from lostflops.cli import main; "
        "overview.findings = lambda timeline: time.sleep(60); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", slow, "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout and started.stderr
        place = started.stdout.readline().strip()
        import httpx

        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(place)
            number = re.search(r'data-run="(\w+)"', page.text)[1]  # type: ignore[index]
            origin = place.partition("/?")[0].partition("/run")[0]
            while browser.get(f"{origin}/api/run/{number}").status_code == 202:
                pass
            with suppress(httpx.TimeoutException):
                browser.get(f"{origin}/api/run/{number}/findings", timeout=0.5)
            started.send_signal(signal.SIGINT)
            assert started.wait(20) == 0
        assert started.stderr.read() == ""


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CannotServe, match="cannot listen at port"):
            serving.serve(runs.ServedRuns([]), port=taken.getsockname()[1], browser=False)


def test_an_address_that_others_reach_is_said_and_answers_under_this_machine_s_names() -> None:
    said: list[str] = []
    serving._explain("0.0.0.0", 8000, said.append)
    assert "nothing is encrypted" in said[0]
    assert socket.gethostname().lower() in serving._names("0.0.0.0")
    assert serving._names("127.0.0.1") == {"127.0.0.1"}
