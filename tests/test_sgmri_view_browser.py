"""The page of frames in a real browser: boxes lie where their pixels are, and everything can be done by keys."""

from __future__ import annotations

import json
from pathlib import Path

from browser import Browser
from test_sgmri_view import server, words  # noqa: F401 - fixtures
from test_viewer_browser import opened

from reasonknee.sgmri.stream import questions
from reasonknee.viewer.server import Server


def settled(browser: Browser) -> None:
    browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_boxes_lie_on_their_pixels(browser: Browser, server: Server, sgmri: Path) -> None:  # noqa: F811
    """Pixels are made bright where a box is; their edges, read back from the canvas, are where it is drawn."""
    row = next(
        r
        for r in questions(sgmri / "release", "volumes", "test")
        if r["findings"] and r["findings"][0]["boxes"]
    )
    opened(browser, server, f"#id={row['id']}")
    for zoom in (1, 2.3):
        seen = browser.run(
            """
            const { state, boxes, rectangle, go } = reasonknee, [f, y0, y1, x0, x1] = boxes()[0].box, { frames } = state
            const first = (f - frames.start) * frames.high * frames.wide
            frames.data.fill(0, first, first + frames.high * frames.wide)
            for (let y = y0; y < y1; y++) for (let x = x0; x < x1; x++) frames.data[first + y * frames.wide + x] = 255
            Object.assign(state, { boxes: false, smooth: false, zoom: arguments[0] })
            go(f)
            return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
              const canvas = document.querySelector('#frame'), { xs, ys } = rectangle(boxes()[0].box)
              const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
              const bright = (x, y) => pixels[4 * (x + canvas.width * y)] > 127
              const middle = [Math.round((xs[0] + xs[1]) / 2), Math.round((ys[0] + ys[1]) / 2)]
              let [left, right, top, bottom] = [middle[0], middle[0], middle[1], middle[1]]
              while (left > 0 && bright(left - 1, middle[1])) left--
              while (right < canvas.width && bright(right, middle[1])) right++
              while (top > 0 && bright(middle[0], top - 1)) top--
              while (bottom < canvas.height && bright(middle[0], bottom)) bottom++
              done({ xs, ys, across: [left, right], down: [top, bottom], high: canvas.height, wide: canvas.width })
            })))
            """,
            zoom,
        )
        edges = [*zip(seen["xs"], seen["across"], strict=True)]
        edges += [*zip(seen["ys"], seen["down"], strict=True)]
        inside = [(d, p) for d, p in edges if 0 < d < min(seen["high"], seen["wide"])]
        assert len(inside) >= 2, seen
        assert max(abs(drawn - pixel) for drawn, pixel in inside) <= 0.75, seen


def test_everything_by_keys_and_a_link_that_leads_back(browser: Browser, server: Server) -> None:  # noqa: F811
    opened(browser, server)
    browser.requests(), browser.complaints()  # of other tests
    first = browser.run("return reasonknee.state.about.id")
    browser.press("j")
    browser.until(f"reasonknee.state.about.id !== {json.dumps(first)}")
    browser.press("c")
    settled(browser)
    frame = browser.run("return reasonknee.state.frame")
    browser.press("]")
    settled(browser)
    moved = browser.run("return reasonknee.state.frame")
    assert moved in (frame, frame + 1)
    browser.press("?")
    assert browser.run("return document.querySelector('#help').open")
    browser.press("Escape")
    browser.until("location.hash.includes('frame=')")
    link, shown = browser.run("return [location.hash, reasonknee.state.about.id]")
    browser.press("Home")
    browser.run("location.hash = arguments[0]", link)
    browser.until(f"reasonknee.state.about.id === {json.dumps(shown)}")
    assert browser.run("return reasonknee.state.frame") == moved
    assert all(url.startswith(f"http://127.0.0.1:{server.port}/") for url in browser.requests())
    assert browser.run("return document.title") != "owned"
    assert not browser.complaints()


def test_filters_leave_what_they_name(browser: Browser, server: Server) -> None:  # noqa: F811
    opened(browser, server)
    browser.run(
        "document.querySelector('#f-task').value = 'localization';"
        "document.querySelector('#f-task').dispatchEvent(new Event('input', { bubbles: true }))"
    )
    browser.until("reasonknee.state.about.task === 'localization'")
    tasks = browser.run(
        "const { state } = reasonknee; return [...state.shown].map(r => state.index.tasks[state.columns.task[r]])"
    )
    assert set(tasks) == {"localization"}
    worth = browser.run(
        "const { state } = reasonknee; return [...state.shown].map(r => state.columns['worth.0'][r])"
    )
    known = [w for w in worth if w is not None and w == w]
    assert known == sorted(known), "worst first"
