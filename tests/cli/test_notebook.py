"""`%%lostflops` in a notebook: the cell runs as it always does, and its first page appears below it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.capture.record import cell
from lostflops.cli.notebook import cell_parser, for_a_cell, line_parser
from lostflops.finding import Finding
from lostflops.report import notebook

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "notebook.ipynb"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def environment(folder: Path) -> dict[str, str]:
    """One in which nothing of the user's own settings is read or written."""
    ours = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    lab = ("SETTINGS_DIR", "WORKSPACES_DIR")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")},
        **{f"JUPYTER_{name}": str(folder / name) for name in ours},
        **{f"JUPYTERLAB_{name}": str(folder / name) for name in lab},
        "IPYTHONDIR": str(folder / "ipython"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "OMP_NUM_THREADS": "1",
        "KINETO_LOG_LEVEL": "99",
    }


def executed(folder: Path, given: Any) -> list[list[Any]]:
    """The outputs of each code cell of a notebook, run in a kernel of its own in `folder`."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("torch")
    before = {**os.environ}
    os.environ.clear()
    os.environ.update(environment(folder))
    try:
        client = nbclient.NotebookClient(
            given,
            timeout=120,
            kernel_name="python3",
            allow_errors=True,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return [one.outputs for one in given.cells if one.cell_type == "code"]


def of_cells(folder: Path, *sources: str) -> list[list[Any]]:
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext lostflops", *sources)]
    return executed(folder, nbformat.v4.new_notebook(cells=cells))[1:]


def said(outputs: list[Any]) -> str:
    """The streams and values of a cell, and the last line of its error."""
    texts = [o["text"] if o.output_type == "stream" else "" for o in outputs]
    texts += [o.data["text/plain"] for o in outputs if o.output_type == "execute_result"]
    texts += [
        f"{o.ename}: {o.evalue}" for o in outputs if o.output_type == "error" and o.ename != "UsageError"
    ]
    return "".join(texts)


def page(outputs: list[Any]) -> dict[str, str]:
    (shown,) = [o.data for o in outputs if o.output_type == "display_data"]
    return shown


def test_a_cell_runs_as_it_always_does_and_its_page_is_shown(tmp_path: Path) -> None:
    """The example, and more that can be done after it."""
    nbformat = pytest.importorskip("nbformat")
    example = nbformat.read(EXAMPLE, as_version=4)
    assert not any(one.get("outputs") or one.get("execution_count") for one in example.cells)
    more = (
        "run.whole is run",
        "%%lostflops --output kept --height 300\nx = !echo shell\ny = model(make_batch(2))\nx[0]",
        "y.shape",
        "%lostflops",
        "%lostflops recipe step-total cell",
    )
    example.cells += [nbformat.v4.new_code_cell(source) for source in more]
    _, _, trained, asked, recipe, names, kept, values, again, wrong = executed(tmp_path, example)
    shown = page(trained)
    assert said(trained) == (
        "lostflops shows the 7 whole steps of this cell; what came before and after is in "
        "`%lostflops --steps 0-8`.\nTrue"
    )
    assert shown["text/plain"].startswith("1 rank · 7 steps (1 to 7) · CPU only · ")
    assert "<iframe srcdoc=" in shown["text/html"] and f"height: {notebook.HEIGHT}px" in shown["text/html"]
    assert not re.search(r"about the recording|warning", shown["text/plain"]), "which rank it is was said"
    assert "make_batch" in said(asked)
    assert "What kinds of work take kernel time" in said(recipe)
    assert said(names) == "True", "the trace is in a variable, all of it"
    assert said(kept) == "'shell'"
    assert said(values) == "torch.Size([2, 64])"
    assert page(kept)["text/plain"].startswith("1 rank · whole recording · CPU only · ")
    assert "height: 300px" in page(kept)["text/html"]
    assert page(again)["text/plain"] == page(kept)["text/plain"]
    assert "There is no recipe called 'step-total'. Did you mean" in said(wrong)
    assert "ended with status 2" in said(wrong)
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["cell.pt.trace.json"]


START = """from torch.profiler import profile, schedule
own = profile(schedule=schedule(wait=0, warmup=2, active=1))
own.start()"""
INSIDE = """%%lostflops
torch.ones(3) * 2
with profile() as inner: torch.ones(3) * 2
sum('aten::mul' == e.name for e in inner.events())"""
OWN_PROFILER = (
    START,
    "%%lostflops\ntorch.ones(3) * 2",  # beside one that warms up
    "for _ in range(2): own.step()",
    "%%lostflops\ntorch.ones(3) * 2",  # beside one that records
    "own.stop(); sorted({e.name for e in own.events() if 'mul' in e.name})",
    INSIDE,
    "%%lostflops\nwith profile() as inner: torch.ones(3) * 2\nlen(inner.events()) > 0",
    "%%lostflops\ntorch.ones(3) * 2",
)
BUSY = (
    r"lostflops: this cell was not recorded: your own profiler is running, and a second one would "
    r"break it\.\ntensor\(.*\)"
)


def test_a_cell_that_cannot_be_shown_is_answered_with_a_sentence(tmp_path: Path) -> None:
    outputs = of_cells(
        tmp_path,
        "%%lostflops\n1 + 1",
        "%lostflops",
        "import torch",
        "%%lostflops\n2 + 2",
        "%%lostflops\nvalue = 5\nraise KeyError('theirs')",
        "value",
        "%%lostflops\nx = (",
        "%%lostflops --steps 7\ntorch.ones(3) * 2",
        "%%lostflops --what sound\nvalue = 6",
        "%%lostflops --wath cuda\nvalue = 6",
        "%%lostflops --as 1x\nvalue = 6",
        "%%lostflops --height 1\nvalue = 6",
        "%%lostflops 'x\nvalue = 6",
        "%%lostflops\nimport asyncio\nawait asyncio.sleep(0)",
        "%lostflops whi",
        "%%lostflops --help\nvalue = 6",
        "value",
        *OWN_PROFILER,
    )
    expected = [
        r"lostflops: this cell was not recorded: it does not use PyTorch\.\n2",
        r"UsageError: No cell has been recorded yet\.\nHint: .*\n",
        "",
        r"lostflops: there is nothing to show: no PyTorch operator ran in this cell\.\n4",
        r"KeyError: 'theirs'",
        "5",
        r"SyntaxError: .*",
        r"lostflops: This run has no step in '7-7'; it has steps 0 to 0\.\ntensor\(\[2\., 2\., 2\.\]\)",
        r"UsageError: 'sound' is not something that can be recorded\.\nHint: .*\n",
        r"UsageError: `%%lostflops` has no option '--wath'\. Did you mean '--what'\?\nHint: .*\n",
        r"UsageError: '1x' is not a variable name\.\nHint: .*\n",
        r"UsageError: --height takes 100 to 10,000 pixels\.\n",
        r"UsageError: ''x' cannot be read: No closing quotation\.\n",
        r"UsageError: A cell with `await` at its top level cannot be recorded: .*\nHint: .*\n",
        r"UsageError: There is no command 'whi'\.\nHint: .*\n",
        r"usage: %%lostflops (.|\n)*",
        "5",
        "",
        BUSY,
        "",
        BUSY,
        r"\['aten::mul'\]",
        r"lostflops recorded the first \d+\.\d s of \d+\.\d s: the cell started a profiler of its own\.\n1",
        r"lostflops: there is nothing to show: no PyTorch operator ran before the cell started .*\nTrue",
        r"tensor\(.*\)",
    ]
    for got, pattern in zip(outputs, expected, strict=True):
        assert re.fullmatch(pattern, said(got)), (pattern, said(got))
    own, after = outputs[-3], outputs[-1]
    assert page(own)["text/plain"].startswith("1 rank · whole recording · CPU only") and page(after)
    (error,) = [o for o in outputs[4] if o.output_type == "error"]
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert trace.count("raise KeyError('theirs')") == 2, "the magic's call, the line and no more"
    assert "lostflops/" not in trace.replace(str(tmp_path), "")


def test_a_recording_ends_when_it_takes_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(cell, "GROW_BY", 32 << 20)
    monkeypatch.setattr(cell, "LOOK_EVERY", 0.01)
    kept: list[bytes] = []

    def work() -> None:
        torch.ones(3)
        kept.append(b"x" * (64 << 20))
        until = time.monotonic() + 20
        while torch.autograd.profiler._is_profiler_enabled and time.monotonic() < until:
            time.sleep(0.01)

    recorded = cell.record(work, tmp_path, ["shapes"])
    assert re.fullmatch(r"the process grew by \d+ MB while it was recorded", recorded.reason)
    assert recorded.trace is not None and recorded.seconds <= recorded.worked < 20
    assert "aten::ones" in recorded.trace.read_text()


def test_a_failing_profiler_does_not_keep_the_cell_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    ran: list[int] = []

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr(torch.profiler._KinetoProfile, "start_trace", broken)
    recorded = cell.record(lambda: ran.append(1), tmp_path, ["cuda"])
    assert ran == [1] and recorded.trace is None
    assert recorded.reason == "PyTorch's profiler could not be started: no CUPTI"


class Seen(HTMLParser):
    """The frame's document, and the text beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frame: dict[str, str | None] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "iframe":
            self.frame = dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_also_there_as_text_where_frames_are_taken_out() -> None:
    made = lostflops.why(lostflops.open(ROOT / "examples" / "runs" / "lora-workers-0"))
    shown = notebook.bundle(made, "cell", 500)
    seen = Seen()
    seen.feed(shown["text/html"])
    assert (seen.frame["srcdoc"] or "").startswith("<!doctype html>")
    assert seen.frame["sandbox"] == "allow-scripts", "the page can do nothing to the notebook"
    assert seen.text == "as text" + shown["text/plain"] == "as text" + notebook.text(made, "cell")
    assert "\x1b" not in shown["text/plain"]
    assert html.unescape(shown["text/html"]).count('<base href="about:srcdoc">') == 1


@pytest.mark.parametrize("parser", [cell_parser(), line_parser()], ids=lambda p: p.prog)
def test_every_option_of_the_magics_is_documented(parser: ArgumentParser) -> None:
    text = (ROOT / "docs" / "capture/notebook.md").read_text()
    for action in parser._actions:
        for word in action.option_strings:
            assert word in ("-h", "--help") or f"`{word}" in text, word


# In JupyterLab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab that shows the example notebook."""
    pytest.importorskip("jupyterlab")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "work").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "work")
    options = {"ServerApp.ip": "127.0.0.1", "ServerApp.port": port, "IdentityProvider.token": "only-here"}
    options |= {"ServerApp.root_dir": tmp_path / "work", "ServerApp.port_retries": 0}
    options |= {"LabApp.news_url": "None", "LabApp.extension_manager": "readonly"}
    settings = tmp_path / "SETTINGS_DIR" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        + [f"--{name}={value}" for name, value in options.items()],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{base}/api?token=only-here", timeout=5).close()
                break
            except OSError:
                assert running.poll() is None, "JupyterLab did not start"
                time.sleep(0.1)
        yield f"{base}/lab/tree/{EXAMPLE.name}?token=only-here"
    finally:
        running.terminate()
        running.wait()


def test_the_page_appears_in_jupyterlab(lab: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("torch")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: `apt-get install chromium`")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_context(viewport={"width": 1280, "height": 1400}).new_page()
        tab.set_default_timeout(90_000)
        tab.goto(lab)
        tab.get_by_text(" | Idle").wait_for()  # before that it would ask which kernel to take
        tab.get_by_role("menuitem", name="Run", exact=True).click()
        tab.get_by_text("Run All Cells", exact=True).click()
        element = tab.locator("iframe[title^='lostflops: ']")
        element.wait_for()
        page = tab.frame_locator("iframe[title^='lostflops: ']")
        page.locator("canvas").first.wait_for()
        verdict = page.locator("h1").inner_text()
        assert "of the" in verdict and "step" in verdict
        # A link inside the page stays inside the frame.
        page.get_by_role("link", name="Recording").click()
        tab.wait_for_timeout(200)
        assert page.locator("h1").inner_text() == verdict
        inner = element.element_handle().content_frame()
        assert inner.evaluate("document.querySelector('#quality').getBoundingClientRect().top") < 200
        assert inner.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shot = os.environ.get("LOSTFLOPS_SCREENSHOT")
        if shot:
            inner.evaluate("scrollTo(0, 0)")
            tab.screenshot(path=shot)
        browser.close()


def test_advice_to_record_more_is_what_to_write_above_the_cell() -> None:
    """In a notebook there is no command that `lostflops record` could start."""
    then = "Record call stacks: `lostflops record --what cuda,shapes,python -- COMMAND`."
    told = for_a_cell(Finding("idle-unexplained", "It idles.", "unknown", (), then))
    assert told.next == "Record call stacks: `%%lostflops --what cuda,shapes,python`."
