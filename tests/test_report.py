"""The report as a reader opens it: files that agree with the scores, model text that stays text, and a page that a browser shows offline."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_scoring import perfect, spoiled, written

from reasonknee.regions import REGIONS
from reasonknee.report import markdown, published, write_report
from reasonknee.report.knee import PLACES
from reasonknee.report.svg import png_uri, text
from reasonknee.scoring import score
from reasonknee.scoring.measures import TABLE2, TABLE3
from reasonknee.scoring.truth import read_truth

PLANTED = '<img src="x" onerror="document.title=\'owned\'"><script>document.title="owned"</script></pre></article>&lt;b&gt;'


@pytest.fixture(scope="session")
def reported(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a model that errs in every way and writes markup, on the training split, which has several patients."""
    folder = tmp_path_factory.mktemp("report")
    truth = read_truth(release, "train")
    lines = spoiled(truth, 8)
    for line in lines:
        line["response"] = PLANTED + "\u202e" + line["response"]
    path = written(folder, lines, "predictions")
    scored = score(path, release, "train", samples=50, model=PLANTED)
    write_report(scored, folder / "out", release, path)
    return folder / "out"


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said += data


def test_the_page_holds_no_markup_of_the_model_and_fetches_nothing(reported: Path) -> None:
    source = (reported / "report.html").read_text()
    page = Page(source)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "link", "object", "embed", "form", "base"}
    assert PLANTED in page.said
    assert "\u202e" not in source
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "action", "data", "srcset", "style"):
            value = attributes.get(name) or ""
            assert not re.search(r"//|url\(|javascript:", value) or value.startswith("data:image/png;base64,"), value[:80]
    assert not re.search(r"@import|url\(", source)


def test_the_page_shows_what_was_scored(reported: Path) -> None:
    scores = json.loads((reported / "scores.json").read_text())
    page = Page((reported / "report.html").read_text())
    for name in ("attribute_micro", "question_macro", "category_macro"):
        for mode in ("strict", "answered"):
            assert f"{scores['averages'][name][mode]['value']:.3f}" in page.said
    for name, values in (*published.TABLE2, *published.TABLE3):
        assert name in page.said
        assert all(f"{v:.3f}" in page.said for v in values)
    pictures = [a["href"] for tag, a in page.tags if tag == "image"]
    assert len(pictures) >= 10
    assert sum(a.get("stroke") == "#4ade80" for tag, a in page.tags if tag == "rect") >= 5, "true boxes"
    assert sum(a.get("stroke") == "#fb923c" for tag, a in page.tags if tag == "rect") >= 5, "the model's boxes"
    cards = [a for tag, a in page.tags if tag == "article"]
    kinds = {(a["class"] or "").split()[1] for a in cards}
    assert {"bml", "cartilage", "meniscus", "unread"} <= kinds
    matrices = [a for tag, a in page.tags if tag == "table" and a.get("class") == "matrix"]
    assert len(matrices) == len(scores["diagnosis"]["attributes"])


def test_every_region_has_a_place_that_overlaps_no_other() -> None:
    assert set(PLACES) == set(REGIONS)
    places = list(PLACES.items())
    for i, (one, (x, y, w, h, _)) in enumerate(places):
        for other, (a, b, c, d, _) in places[i + 1 :]:
            assert x + w <= a or a + c <= x or y + h <= b or b + d <= y, (one, other)


def test_published_rows_fit_the_columns() -> None:
    assert all(len(values) == len(TABLE2) + 1 for _, values in published.TABLE2)
    assert all(len(values) == len(TABLE3) for _, values in published.TABLE3)


def test_markdown(reported: Path) -> None:
    said = (reported / "scores.md").read_text()
    assert "<img" not in said.replace("\\<img", "")
    assert "majority grade" in said
    assert "constant box" in said
    tables = [line for line in said.splitlines() if line.startswith("|")]
    blocks: list[int] = []
    for line in said.splitlines():
        if line.startswith("|"):
            columns = len(re.sub(r"\\\|", "", line).split("|"))
            assert not blocks or columns == blocks[-1] or blocks[-1] == 0
            blocks.append(columns)
        else:
            blocks.append(0)
    assert len(tables) > 15


def test_what_the_hub_reads(reported: Path) -> None:
    scores = json.loads((reported / "scores.json").read_text())
    entries = yaml.safe_load((reported / ".eval_results" / "reasonknee-bench.yaml").read_text())
    assert {e["dataset"]["task_id"]: e["value"] for e in entries}["attribute_micro"] == round(
        scores["averages"]["attribute_micro"]["strict"]["value"], 6
    )
    benchmark = yaml.safe_load((reported / "eval.yaml").read_text())
    assert {t["id"] for t in benchmark["tasks"]} == {e["dataset"]["task_id"] for e in entries}
    hub = pytest.importorskip("huggingface_hub")
    if hasattr(hub, "parse_eval_result_entries"):
        assert len(hub.parse_eval_result_entries(entries)) == len(entries)


def test_nothing_wrong_and_no_voxels(release: Path, tmp_path: Path) -> None:
    """A perfect model has an empty browser; a release without voxels has one without pictures."""
    truth = read_truth(release, "test")
    path = written(tmp_path, perfect(truth))
    write_report(score(path, release, samples=10), tmp_path / "perfect", release, path)
    assert "No answer went wrong." in (tmp_path / "perfect" / "report.html").read_text()
    manifest = json.loads((release / "manifest.json").read_text())
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "annotations").symlink_to(release / "annotations")
    kept = [s for s in manifest["shards"] if s["config"] == "annotations"]
    (tmp_path / "r" / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    path = written(tmp_path, spoiled(truth, 9), "spoiled")
    write_report(score(path, tmp_path / "r", samples=10), tmp_path / "plain", tmp_path / "r", path)
    said = (tmp_path / "plain" / "report.html").read_text()
    assert "holds no voxels" in said
    assert "<image" not in said


def test_nothing_answered_is_shown_as_undefined(release: Path, tmp_path: Path) -> None:
    truth = read_truth(release, "test")
    path = written(tmp_path, [{"id": id_, "response": None} for id_ in truth.ids])
    scored = score(path, release, samples=10)
    scores: dict[str, Any] = scored.scores
    assert scores["averages"]["attribute_micro"]["strict"]["value"] == 0
    answered = scores["averages"]["attribute_micro"]["answered"]
    assert answered["value"] is None
    assert answered["reason"]
    write_report(scored, tmp_path / "out", release, path)
    assert "NaN" not in (tmp_path / "out" / "scores.json").read_text()
    assert "nan" not in markdown(scores)
    assert ">nan<" not in (tmp_path / "out" / "report.html").read_text()


def test_a_picture_is_a_png() -> None:
    import base64
    import io

    import numpy as np

    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 12)
    read = image.open(io.BytesIO(base64.b64decode(png_uri(pixels).split(",")[1])))
    assert (np.asarray(read) == pixels).all()


def test_text_of_any_kind_is_text() -> None:
    assert text('<a href="x">\'&') == "&lt;a href=&quot;x&quot;&gt;&#x27;&amp;"
    assert text("a\ud800\x00\u202eb\nc") == "a?\ufffd\ufffdb\nc"


def test_a_browser_shows_it_offline(reported: Path, tmp_path: Path) -> None:
    """Real Chromium: the planted script does not run, and the page is drawn to its end."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
    command = [chromium, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    source = (reported / "report.html").as_uri()
    dumped = subprocess.run([*command, "--dump-dom", source], capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search("<title>(.*?)</title>", dumped, flags=re.S)
    assert title is not None
    assert title[1].startswith("&lt;img")
    shot = tmp_path / "shot.png"
    subprocess.run([*command, f"--screenshot={shot}", "--window-size=1240,3000", source], capture_output=True, timeout=120, check=True)
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed").open(shot).convert("L")
    assert image.size == (1240, 3000)
    for top in range(0, 3000, 500):  # something is drawn in every part
        low, high = image.crop((0, top, 1240, top + 500)).getextrema()
        assert high - low > 100
