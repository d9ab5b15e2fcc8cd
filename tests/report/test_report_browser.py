"""The HTML report in a real browser. Needs Chromium and the extra `browser`; where they aren't, it says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_reports import failure, gate, made_run

from tqcli.report.html import to_html

playwright = pytest.importorskip("playwright.sync_api", reason="no browser tests without: pip install -e '.[browser]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[browser]'")

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_CODECS = [
    f"{name}@{bits}" for name in ("turboquant-mse", "turboquant-rvq", "vecinfer", "affine") for bits in (2, 3, 4)
]
_VIEWS = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 390)}

COVERED = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()])
  return texts.flatMap(([name, a], i) => texts.slice(0, i).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3
  ).map(([other]) => `${name} covers ${other}`))
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, (*_NAMES, _MAC))), None)
    if found is None:
        pytest.skip(
            "there is no Chromium or Chrome to open a report in; "
            "on Debian: apt-get install -y --no-install-recommends chromium fonts-dejavu-core"
        )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    verdicts = [gate("pass"), gate("fail", reason="outside"), gate("inconclusive")]
    run = made_run([*_CODECS, "fp16"], layers=30, gates=verdicts, failures=[failure()], notes=["a note"])
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(to_html(run), encoding="utf-8")
    return file


@pytest.mark.parametrize("view", _VIEWS)
def test_a_report_opens_without_network_or_complaint_and_can_be_read(view: str, browser: Any, report: Path) -> None:
    scheme, width = _VIEWS[view]
    # The report forbids scripts; the checker is one.
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(report.as_uri())
    assert said == [report.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(COVERED) == []
    result = axe.Axe().run(page)
    assert result.violations_count == 0, result.generate_report()
    context.close()


def test_a_report_needs_no_scripts(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("h1").inner_text().startswith("made")
    assert all(page.locator("table").nth(index).is_visible() for index in range(page.locator("table").count()))
    page.locator("summary").click()
    assert page.locator("pre").is_visible()
    context.close()
