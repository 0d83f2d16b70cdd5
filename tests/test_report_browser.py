"""The report in a real browser, headless: it loads nothing, complains of nothing, and fits a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.store import load_profile
from tests.test_report import SECTIONS, SHIPPED, hostile_profile
from tuner.report.build import Subject, build_report
from tuner.report.page import html

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1200, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def written(folder: Path, hostile: bool) -> Path:
    profile = hostile_profile() if hostile else load_profile(SHIPPED)
    path = folder / "report.html"
    path.write_text(html(build_report(Subject(None, profile, None), "sage_tune report")), encoding="utf-8")
    return path


@pytest.mark.parametrize("hostile", [False, True], ids=["shipped", "hostile"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_opens_offline_and_fits(
    browser: sync_api.Browser, tmp_path: Path, size: dict[str, int], hostile: bool
) -> None:
    page = browser.new_page(viewport=size, color_scheme="dark" if size is PHONE else "light")
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    path = written(tmp_path, hostile)
    page.goto(path.as_uri())
    assert not said, said
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    width, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= inner == size["width"], f"the page is {width} wide on a screen of {inner}"
    for key in SECTIONS:
        assert page.locator(f"section#{key} h2").is_visible()
    assert page.locator("img, script").count() == 0
    # a chart is as large as its column, and its letters can be read
    for box in [chart.bounding_box() for chart in page.locator(".chart svg").all()]:
        assert box is not None and box["width"] > 250 and box["height"] > 80
    page.close()


def test_a_page_that_is_too_wide_would_be_found(browser: sync_api.Browser, tmp_path: Path) -> None:
    """The planted fault: tables that push the page instead of scrolling in their frames."""
    path = written(tmp_path, False)
    path.write_text(path.read_text(encoding="utf-8").replace(".scroll { overflow-x: auto;", ".scroll {"))
    page = browser.new_page(viewport=PHONE)
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]
    page.close()
