"""Takes the README's picture of the HTML report anew: `python docs/picture.py`, where there is a Chromium."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from lostflops.cli import main

ROOT = Path(__file__).parent.parent
WIDTH, HEIGHT = 1100, 1200

with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
    report = Path(place) / "report.html"
    main(["why", str(ROOT / "examples/runs/ddp"), "--html", str(report)])
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.goto(report.as_uri())
    page.screenshot(path=ROOT / "docs/report.png")
    browser.close()
