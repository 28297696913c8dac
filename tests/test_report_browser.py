"""The report in a real browser: nothing planted runs, nothing is fetched, it fits a phone, and its links open rows in the viewer."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser
from test_report import PLANTED, reported  # noqa: F401 - the fixture
from test_scoring import spoiled, written
from test_viewer import serve

from reasonknee.report import write_report
from reasonknee.report.links import VIEWER
from reasonknee.scoring import score
from reasonknee.scoring.truth import read_truth
from reasonknee.viewer.open import started


def test_nothing_runs_and_nothing_is_fetched(browser: Browser, reported: Path) -> None:  # noqa: F811
    browser.open((reported / "report.html").as_uri())
    assert browser.run("return document.title").startswith("<img")
    assert browser.run("return document.body.textContent.includes(arguments[0])", PLANTED)
    assert browser.run("return document.querySelectorAll('script, img, iframe, link').length") == 0
    asked = [url for url in browser.requests() if not url.startswith("file:")]
    assert asked == []
    assert browser.complaints() == []
    shown = browser.run("return [...document.querySelectorAll('.case')].filter(c => c.offsetParent).length")
    browser.click("label[for=kind-bml]")
    only = browser.run(
        "return [...document.querySelectorAll('.case')].filter(c => c.offsetParent).map(c => c.classList[1])"
    )
    assert 0 < len(only) < shown
    assert set(only) == {"bml"}


@pytest.mark.parametrize("wide", [390, 1240])
def test_it_fits_the_page(browser: Browser, reported: Path, wide: int) -> None:  # noqa: F811
    """No part but a table in its own frame is wider than the window, and no text is too small to read."""
    browser.size(wide, 844)
    browser.open((reported / "report.html").as_uri())
    browser.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.run("return document.documentElement.scrollWidth") <= wide
    wider = browser.run(
        """return [...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, .knee, .plane') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className).slice(0, 5)"""
    )
    assert wider == []
    small = browser.run(
        """return [...document.querySelectorAll('.knee text')].filter(t => getComputedStyle(t).display !== 'none' && t.getBoundingClientRect().height > 0).map(t => t.getBoundingClientRect().height).sort((a, b) => a - b)[0]"""
    )
    assert small >= 9
    outside = browser.run("""
      const out = []
      for (const svg of document.querySelectorAll('svg.plane')) for (const box of svg.querySelectorAll('.box')) {
        const s = svg.getBoundingClientRect(), b = box.getBoundingClientRect(), clear = 3
        if (s.width && (b.left < s.left - clear || b.right > s.right + clear || b.top < s.top - clear || b.bottom > s.bottom + clear)) out.push(svg.ariaLabel)
      }
      return out""")
    assert outside == [], "every box is in sight"


def test_a_link_of_the_report_opens_the_row_in_the_viewer(
    browser: Browser, release: Path, tmp_path: Path
) -> None:
    """From a file, which is another site to the browser: the page opens, and its own requests carry the cookie."""
    browser.size(1500, 900)
    path = written(tmp_path, spoiled(read_truth(release, "test"), 7), "model")
    write_report(score(path, release, samples=0), tmp_path / "out", release, path)
    server = serve(started(release, [path], [tmp_path / "out"], review=tmp_path / "r.jsonl", port=0))
    page = tmp_path / "out" / "report.html"
    page.write_text(page.read_text().replace(VIEWER, f"http://127.0.0.1:{server.port}/"))
    browser.open(page.as_uri())
    browser.run("document.querySelector('.case a').click()")
    browser.until("document.body.dataset.failed")
    assert "open the address" in browser.run("return document.querySelector('#status').textContent"), (
        "a stranger sees nothing"
    )
    browser.open(server.address)
    browser.until("document.body.dataset.ready")
    browser.open(page.as_uri())
    id_ = browser.run("return document.querySelector('.case .id').textContent")
    browser.run("document.querySelector('.case a').click()")
    browser.until(f"document.body.dataset.open === '{id_}'")
    browser.open(page.as_uri())
    browser.run(
        "document.querySelector('.knee a[href*=\"region=acl\"]').dispatchEvent(new MouseEvent('click', { bubbles: true }))"
    )
    browser.until(
        "document.body.dataset.ready && reasonknee.state.shown.length && [...reasonknee.state.shown].every(r => reasonknee.idOf(r).endsWith('-acl'))"
    )
    server.shutdown()
    server.server_close()
