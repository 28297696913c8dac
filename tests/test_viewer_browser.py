"""The viewer in a real browser: what is drawn lies where the voxels are, and everything can be done by keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, needed
from test_scoring import spoiled, written
from test_viewer import SCRIPT, serve

from reasonknee.boxes import Box
from reasonknee.cohort.annotations import Annotation
from reasonknee.cohort.review import read_review
from reasonknee.layout import Shard
from reasonknee.questions import question_set
from reasonknee.release.rows import Options, Sources, rows
from reasonknee.scoring.truth import read_truth
from reasonknee.viewer.open import started
from reasonknee.viewer.server import Server
from reasonknee.volumes import Grid, Volume

DONE = "document.body.dataset.ready"
ORIENTATIONS = [
    *("LIP", "RSA"),
    *(pytest.param(o, marks=pytest.mark.browser) for o in ("RIP", "LSA", "LIA", "RSP", "LSP", "RIA")),
]
SPACING = (1.5, 0.8, 0.5)


@pytest.fixture(scope="module")
def served(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    lines = spoiled(read_truth(release, "test"), 5)
    lines[3]["response"] = f"{SCRIPT}<img src=x onerror=alert(1)> an unusual sheen. " + lines[3]["response"]
    models = [
        written(folder, lines, "careless"),
        written(folder, spoiled(read_truth(release, "test"), 9), "steady"),
    ]
    made = serve(started(release, models, review=folder / "review.jsonl", reader="rm", port=0))
    yield made
    made.shutdown()
    made.server_close()


def opened(browser: Browser, server: Server, where: str = "") -> None:
    browser.open("about:blank")
    browser.open(server.address)
    browser.until(DONE)
    if where:
        browser.run("location.hash = arguments[0]", where)
        browser.until(f"document.body.dataset.open === {json.dumps(where.split('id=')[1].split('&')[0])}")


def state(browser: Browser, what: str) -> Any:
    return browser.run(f"return reasonknee.state.{what}")


# --- where things lie -----------------------------------------------------------------------------------------


def release_of(folder: Path, orientation: str, like: Path) -> tuple[Path, str]:
    """A release with one volume that is dark but for a bright box, which is the true box of a question."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from reasonknee.layout.records import arrow_schema

    shape, box = (20, 44, 60), Box(4, 11, 9, 30, 21, 38)
    z, y, x = SPACING
    letters = dict(zip("zyx", orientation, strict=True))
    affine = np.zeros((4, 4))
    affine[1, 0] = x if letters["x"] == "A" else -x
    affine[2, 1] = y if letters["y"] == "S" else -y
    affine[0, 2] = z if letters["z"] == "R" else -z
    affine[3, 3] = 1
    array = np.zeros(shape, np.uint16)
    array[box.slices] = 1000
    grid = Grid(shape, affine)
    assert grid.orientation == orientation
    asked = question_set("paper62")
    grades = {q.id: {a.id: 0 for a in q.attributes} for q in asked if q.id == "acl"}
    known = Annotation(
        "1000001", "00m", "left", "test", "s", "t", shape, SPACING, orientation, {"acl": box}, grades
    )
    made = list(rows(Sources(known, Volume(array, grid)), "full", Options()))
    path = folder / "full" / "test-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(made, arrow_schema("full")), path)
    shard = Shard("full/test-00000-of-00001.parquet", "full", "test", 1, path.stat().st_size, 1, "0" * 64)
    write_manifest(folder, like, shard)
    return folder, "1000001-00m-left-acl"


def write_manifest(folder: Path, like: Path, *shards: Shard) -> None:
    """A manifest like that of a real release, with these shards alone."""
    known = json.loads((like / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps({**known, "shards": [asdict(shard) for shard in shards]})
    )


EDGES = """
const { state, rectangle } = reasonknee, found = {}
for (const plane of ['sag', 'cor', 'ax']) {
  const canvas = document.querySelector(`[data-plane=${plane}] canvas`), { width, height } = canvas
  const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data
  const bright = (x, y) => pixels[4 * (x + width * y)] > 127
  const { xs, ys } = rectangle(plane, canvas, state.about.box)
  const row = Math.round(ys[0] + (ys[1] - ys[0]) * 0.3), column = Math.round(xs[0] + (xs[1] - xs[0]) * 0.7)
  let [left, right, top, bottom] = [column, column, row, row] // from inside outwards: a letter at the edge is bright, too
  while (bright(left - 1, row)) left--
  while (bright(right, row)) right++
  while (bright(column, top - 1)) top--
  while (bright(column, bottom)) bottom++
  found[plane] = { xs, ys, across: [left, right], down: [top, bottom] }
}
return found
"""


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_box_edges_lie_on_the_edges_of_their_voxels(
    browser: Browser, release: Path, tmp_path: Path, orientation: str
) -> None:
    """The bright voxels are the box. Their edges, read back from the pixels, are where the box is drawn: in three planes, two
    zooms, and whichever way the axes run."""
    folder, id_ = release_of(tmp_path / "r", orientation, release)
    server = serve(started(folder, review=tmp_path / "r.jsonl", port=0))
    opened(browser, server, f"#id={id_}")
    browser.run(
        "reasonknee.state.boxes = false; reasonknee.state.smooth = false; reasonknee.state.window = [0, 1000]"
    )
    worst = 0.0
    for zoom in (1, 1.7):
        browser.run("reasonknee.state.zoom = arguments[0]; dispatchEvent(new Event('resize'))", zoom)
        browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        for plane, seen in browser.run(EDGES).items():
            pairs = [
                *zip(seen["xs"], seen["across"], strict=True),
                *zip(seen["ys"], seen["down"], strict=True),
            ]
            off = max(abs(drawn - pixel) for drawn, pixel in pairs)
            assert off <= 0.75, (orientation, plane, zoom, seen)
            worst = max(worst, off)
    assert worst > 0, "edges between pixels are what was measured"
    server.shutdown()
    server.server_close()


@pytest.mark.browser
def test_letters_and_sides_follow_the_patient(browser: Browser, release: Path, tmp_path: Path) -> None:
    """The same knee stored in two directions looks the same."""
    seen = []
    for orientation in ("LIP", "RSA"):
        folder, id_ = release_of(tmp_path / orientation, orientation, release)
        server = serve(started(folder, review=tmp_path / "r.jsonl", port=0))
        opened(browser, server, f"#id={id_}")
        under = "import('/planes.js').then(p => p.under('cor', document.querySelector('[data-plane=cor] canvas'), 5, 5))"
        corner = browser.run(f"return {under}")
        voxels = state(browser, "volume.shape")
        first = corner[0] < voxels[0] / 2
        seen.append(first == (orientation[0] == "L"))
        server.shutdown()
        server.server_close()
    assert seen == [True, True], "left on the screen is the patient's right: z = 0 where z grows to the left"


# --- hands ----------------------------------------------------------------------------------------------------


def test_keys_do_everything(browser: Browser, served: Server) -> None:
    truth = served.viewer.source.truth
    id_ = next(i for i in read_truth_ids(served) if i.endswith("-acl") and truth.has_box[truth.rows[i]])
    opened(browser, served, f"#id={id_}&split=test&sort=")
    first = state(browser, "cross")
    browser.press("]")
    browser.until(f"reasonknee.state.cross[0] === {first[0] + 1}")
    browser.press("[", "[")
    browser.until(f"reasonknee.state.cross[0] === {first[0] - 1}")
    browser.press("c")
    browser.until(f"reasonknee.state.cross[0] === {first[0]}")
    browser.press("j")
    after = truth.ids[truth.rows[id_] + 1]
    browser.until(f"document.body.dataset.open === '{after}'")
    browser.press("k")
    browser.until(f"document.body.dataset.open === '{id_}'")
    browser.press("b")
    assert state(browser, "boxes") is False
    browser.press("b", "+")
    assert state(browser, "zoom") == 1.25
    window = state(browser, "window")
    browser.press("w")
    assert state(browser, "window") != window
    browser.press("r")
    assert state(browser, "zoom") == 1
    assert state(browser, "window") == window
    browser.press(">", ".")
    changed = state(browser, "window")
    assert changed[1] - changed[0] > window[1] - window[0]
    assert sum(changed) > sum(window), "wider and darker by keys"
    browser.press("r", "4", "]", "}", "4")
    assert (state(browser, "azimuth"), state(browser, "elevation")) == (35, 25), "the 3D view turns by keys"
    browser.press("a")
    assert browser.run("return document.activeElement.closest('.review .grades') !== null")
    browser.press("Escape")
    for key, plane in zip("1234", ("sag", "cor", "ax", "vol"), strict=True):
        browser.press(key)
        assert state(browser, "big") == plane
        browser.press(key)
        assert state(browser, "big") == ""
    browser.press("End")
    browser.until("reasonknee.state.place === reasonknee.state.shown.length - 1")
    browser.press("Home")
    browser.until("reasonknee.state.place === 0")
    browser.press("?")
    assert browser.run("return document.querySelector('#help').open")
    browser.press("Escape")
    browser.press("/")
    assert browser.run("return document.activeElement.id") == "f-text"
    browser.press(*"pcl", "Escape")
    browser.until(
        "reasonknee.state.shown.length > 0 && [...reasonknee.state.shown].every(r => reasonknee.idOf(r).endsWith('pcl'))"
    )
    browser.press("Backspace")
    browser.until("reasonknee.state.shown.length === reasonknee.state.index.rows")


def read_truth_ids(server: Server) -> list[str]:
    source = server.viewer.source
    return [source.truth.ids[n] for n in np.flatnonzero(source.splits == 2)]


@pytest.mark.browser
def test_mouse_moves_window_crosshair_and_pan(browser: Browser, served: Server) -> None:
    opened(browser, served, f"#id={read_truth_ids(served)[0]}")
    box = browser.run(
        "const r = document.querySelector('[data-plane=sag] canvas').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]"
    )
    middle = (box[0] + box[2] / 2, box[1] + box[3] / 2)
    browser.drag(middle, (middle[0] + 10, middle[1] + 20))
    wanted = browser.run(
        "return import('/planes.js').then(p => p.under('sag', document.querySelector('[data-plane=sag] canvas'), arguments[0], arguments[1]).map(Math.floor))",
        *[int(m) - int(b) + d for m, b, d in zip(middle, box, (10, 20), strict=False)],
    )
    cross = state(browser, "cross")
    assert all(abs(a - b) <= 1 for a, b in zip(cross, wanted, strict=True)), (cross, wanted)
    window = state(browser, "window")
    browser.drag(middle, (middle[0] + 50, middle[1]), button=2)
    lo, hi = state(browser, "window")
    assert hi - lo > window[1] - window[0], "to the right: wider"
    browser.drag(middle, (middle[0] + 30, middle[1]), button=1)
    assert state(browser, "pan.sag")[0] > 0


def test_filters_links_and_order(browser: Browser, served: Server) -> None:
    opened(browser, served)
    verdict, iou = (served.viewer.columns[f"{name}.0"] for name in ("verdict", "iou"))
    places = "[...reasonknee.state.shown]"
    assert browser.run("return document.querySelector('#f-sort').value") == "worst"
    badness = served.viewer.columns["badness.0"]
    shown = np.array(browser.run(f"return {places}"), np.int64)
    assert (np.diff(badness[shown]) <= 0).all()
    browser.run("location.hash = '#verdict=wrong&iou=0.5&sort=iou&model=0'")
    expected = np.flatnonzero((verdict == 2) & (iou <= 0.5))
    browser.until(f"reasonknee.state.shown.length === {len(expected)}")
    shown = np.array(browser.run(f"return {places}"), np.int64)
    assert set(shown.tolist()) == set(expected.tolist())
    assert (np.diff(iou[shown]) >= 0).all()
    browser.run("location.hash = '#text=nothing-of-the-kind'")
    browser.until("document.querySelector('#count').textContent.includes('Backspace clears')")
    browser.run("location.hash = '#words=unusual sheen'")
    browser.until("reasonknee.state.shown.length === 1")
    browser.until("document.querySelector('#card').textContent.includes('unusual sheen')")
    assert browser.run("return document.querySelectorAll('#card script, #card img').length") == 0, (
        "a model's markup stays text"
    )
    assert browser.run("return document.querySelector('#card').textContent.includes(arguments[0])", SCRIPT)
    assert "owned" not in browser.run("return document.title")
    browser.run(
        "document.querySelector('#f-words').value = ''; document.querySelector('#f-category').value = 'bml'; document.querySelector('#f-side').value = 'left'; document.querySelector('#filters').dispatchEvent(new Event('input'))"
    )
    browser.until("reasonknee.state.shown.length > 1")
    ids = browser.run(f"return {places}.map(reasonknee.idOf)")
    assert all("-left-" in i and i.endswith("_bml") for i in ids)
    browser.press("2", "+", "]", "b", "p", ">")
    browser.until("location.hash.includes('plane=cor') && location.hash.includes('category=bml')")
    browser.until(
        "location.hash.includes('zoom=1.25') && location.hash.includes('boxes=0') && location.hash.includes('window=')"
    )
    link = browser.run("return location.hash")
    shown_now = (
        "row",
        "cross",
        "big",
        "zoom",
        "boxes",
        "smooth",
        "window.map(Math.round)",
        "pan.ax.map(Math.round)",
    )
    seen = [state(browser, name) for name in shown_now]
    browser.open("about:blank")
    browser.open(served.address.split("?")[0] + link)
    browser.until(DONE)
    assert [state(browser, name) for name in shown_now] == seen
    assert browser.run(f"return {places}.map(reasonknee.idOf)") == ids


def test_review_by_keys(browser: Browser, served: Server) -> None:
    path, id_ = served.viewer.review.path, next(i for i in read_truth_ids(served) if i.endswith("-acl"))
    opened(browser, served, f"#id={id_}")
    browser.press("f")
    browser.until("document.querySelector('.entry')?.textContent.startsWith('box misplaced')")
    browser.press("o")
    browser.press(*"hm", "Escape", "o")
    browser.until("reasonknee.state.about.review.length === 2")
    assert (read_review(path)[-1].flag, read_review(path)[-1].note) == ("note", "hm")
    ids = browser.run("return [...document.querySelectorAll('[id]')].map(e => e.id).filter(Boolean)")
    assert len(ids) == len(set(ids)), "what has a name is found by it"
    browser.press("u")
    browser.until("reasonknee.state.about.review.length === 1")
    browser.press("o", *"still")
    browser.click("#g-complete_tear")
    browser.press("Escape")
    browser.run(
        "const s = document.querySelector('#g-complete_tear'); s.value = '1'; s.dispatchEvent(new Event('change')); s.focus()"
    )
    browser.run("window.made = document.querySelector('#save')")
    browser.run("document.querySelector('#draw').click()")
    browser.until("reasonknee.state.draft && document.querySelector('#save') !== made")
    written = "[document.querySelector('#written').value, document.querySelector('#g-complete_tear').value, document.activeElement.id]"
    assert browser.run(f"return {written}") == ["still", "1", "g-complete_tear"], (
        "a new panel keeps what was written"
    )
    browser.run("document.querySelector('#written').value = ''; document.activeElement.blur()")
    before = dict(state(browser, "draft"))
    spot = browser.run("""
      const c = document.querySelector('[data-plane=sag] canvas'), { xs, ys } = reasonknee.rectangle('sag', c, reasonknee.state.draft), r = c.getBoundingClientRect()
      return [r.x + xs[1] / devicePixelRatio, r.y + (ys[0] + ys[1]) / 2 / devicePixelRatio]""")
    browser.drag((spot[0], spot[1]), (spot[0] + 25, spot[1]))
    after = dict(state(browser, "draft"))
    changed = [name for name in before if before[name] != after[name]]
    assert len(changed) == 1, (before, after)
    assert changed[0][0] == "x", "one edge follows the pointer"
    browser.run(
        "const s = document.querySelector('#g-complete_tear'); s.value = String(1 - reasonknee.state.about.grades.complete_tear)"
    )
    browser.press("s")
    browser.until("reasonknee.state.about.review.length === 2")
    browser.run(
        "window.asked = []; for (const a of document.querySelectorAll('.links a')) a.onclick = e => { e.preventDefault(); asked.push(a.id) }"
    )
    browser.press("d", "n")
    assert browser.run("return asked") == ["export", "boxes-nifti"], "exports have keys, too"
    last = read_review(path)[-1]
    assert last.kind == "correction"
    assert last.box
    assert last.box.as_dict() == after
    assert set(last.grades or {}) == {"complete_tear"}
    assert browser.run("return fetch('/api/review.jsonl').then(a => a.text())").count("\n") == 2


def test_blind_reading_hides_the_answer_until_it_is_given(browser: Browser, served: Server) -> None:
    id_ = next(
        i
        for i in read_truth_ids(served)
        if i.endswith("-pcl") and served.viewer.source.truth.rows[i] not in served.viewer.seen
    )
    opened(browser, served)
    browser.run("location.hash = arguments[0]", f"#blind=1&id={id_}")
    browser.until(f"document.body.dataset.open === '{id_}'")
    assert state(browser, "about.grades") is None
    assert browser.run("return reasonknee.boxes().length") == 0
    assert "truth" not in browser.run("return document.querySelector('#card').textContent")
    browser.run("for (const s of document.querySelectorAll('.grades select')) s.value = '0'")
    browser.press("s")
    browser.until("reasonknee.state.about.grades")
    entry = read_review(served.viewer.review.path)[-1]
    assert (entry.kind, entry.blind, entry.id) == ("reading", True, id_)
    browser.press("x")


def test_no_request_leaves_the_machine_and_nothing_complains(browser: Browser, served: Server) -> None:
    browser.requests()
    browser.complaints()
    opened(browser, served)
    browser.press("j")
    browser.press("4")
    browser.press("4")
    asked = browser.requests()
    assert len(asked) > 10
    assert all(url.startswith(f"http://127.0.0.1:{served.port}/") for url in asked)
    assert browser.complaints() == []


@pytest.mark.browser
def test_without_webgl_it_says_so_and_the_planes_work(served: Server, tmp_path: Path) -> None:
    needed()
    plain = Browser(tmp_path, webgl=False)
    try:
        opened(plain, served)
        assert plain.run("return !document.querySelector('#no-gl').hidden")
        drawn = plain.run("""
          const c = document.querySelector('[data-plane=cor] canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data
          let most = 0
          for (let i = 0; i < d.length; i += 4) most = Math.max(most, d[i])
          return most""")
        assert drawn > 150
    finally:
        plain.close()


@pytest.mark.browser
def test_half_a_million_rows_scroll(browser: Browser, release: Path, tmp_path: Path) -> None:
    """As many rows as the whole dataset has: few elements are made, the last row can be reached, and filters reach all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "many"
    (folder / "annotations").mkdir(parents=True)
    source = pq.read_table(sorted((release / "annotations").glob("train-*.parquet"))[0])
    one = source.filter(pa.compute.equal(source["volume_id"], source["volume_id"][0].as_py()))
    parts, questions = [], one["question_id"]
    volumes = 494_140 // one.num_rows + 1
    for v in range(volumes):
        patient = str(1_000_000 + v)
        ids = pa.compute.binary_join_element_wise(f"{patient}-00m-left", questions, "-")
        made = one.set_column(one.schema.get_field_index("id"), "id", ids)
        for name, value in (
            ("patient", patient),
            ("volume_id", f"{patient}-00m-left"),
            ("visit", "00m"),
            ("side", "left"),
        ):
            made = made.set_column(made.schema.get_field_index(name), name, pa.array([value] * one.num_rows))
        parts.append(made)
    path = folder / "annotations" / "train-00000-of-00001.parquet"
    pq.write_table(pa.concat_tables(parts), path, row_group_size=60_000, compression="zstd")
    rows_ = volumes * one.num_rows
    write_manifest(
        folder,
        release,
        Shard(
            "annotations/train-00000-of-00001.parquet",
            "annotations",
            "train",
            rows_,
            path.stat().st_size,
            1,
            "0" * 64,
        ),
    )
    server = serve(started(folder, review=tmp_path / "r.jsonl", port=0))
    opened(browser, server)
    assert state(browser, "index.rows") == rows_
    assert browser.run("return document.querySelectorAll('#window li').length") < 60
    browser.press("End")
    browser.until(f"reasonknee.state.row === {rows_ - 1}")
    browser.until(f"document.querySelector('#window [aria-selected=true]')?.dataset.place === '{rows_ - 1}'")
    browser.run("document.querySelector('#rows').scrollTop = 4e6")
    browser.until("+document.querySelector('#window li').dataset.place > 200000")
    browser.run("document.querySelector('#rows').scrollTop = 0")
    browser.until("document.querySelector('#window li').dataset.place === '0'")
    wanted = f"{1_000_000 + volumes // 2}-00m-left"
    browser.run(
        "document.querySelector('#f-text').value = arguments[0]; document.querySelector('#filters').dispatchEvent(new Event('input'))",
        wanted,
    )
    browser.until(f"reasonknee.state.shown.length === {one.num_rows}")
    browser.until(f"document.body.dataset.open.startsWith('{wanted}')")
    assert "no voxels" in browser.run("return document.querySelector('#note').textContent")
    server.shutdown()
    server.server_close()
    shutil.rmtree(folder)


@pytest.mark.browser
def test_a_small_window_has_drawers(browser: Browser, served: Server) -> None:
    browser.size(800, 600)
    try:
        opened(browser, served)
        visible = "getComputedStyle(document.querySelector('{}')).visibility"
        assert browser.run(f"return {visible.format('aside')}") == "hidden"
        browser.press("l")
        assert browser.run(f"return {visible.format('aside')}") == "visible"
        browser.press("i")
        assert browser.run(f"return {visible.format('section')}") == "visible"
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.size(1500, 900)
