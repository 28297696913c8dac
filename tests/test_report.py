"""The report as a reader opens it: files that agree with the scores, model text that stays text, and a page that works offline."""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import command, run
from test_scoring import perfect, spoiled, written

from reasonknee.boxes import Box
from reasonknee.errors import ReasonKneeError
from reasonknee.questions import REGIONS
from reasonknee.report import markdown, published, verdict, write_page, write_report
from reasonknee.report.cases import _varied
from reasonknee.report.knee import PLACES
from reasonknee.report.links import VIEWER
from reasonknee.report.page import structure_filter
from reasonknee.report.rows import interval
from reasonknee.report.svg import png_uri
from reasonknee.report.words import count, listed, plain_text, share, told, unbroken
from reasonknee.scoring import score, score_arrays
from reasonknee.scoring.baselines import predict
from reasonknee.scoring.measures import STRUCTURES, TABLE2, TABLE3
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.truth import NONE, TABLE, read_truth
from reasonknee.volumes import Grid, Volume
from reasonknee.volumes.planes import planes

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
    policy = next(
        a["content"]
        for tag, a in page.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "action", "data", "srcset", "style"):
            value = attributes.get(name) or ""
            ours = value.startswith(("data:image/png;base64,", f"{VIEWER}#", "#"))
            assert ours or not re.search(r"//|url\(|javascript:", value), value[:80]
    assert not re.search(r"@import|url\((?!#hatch)", source)


def test_the_page_shows_what_was_scored(reported: Path) -> None:
    scores = json.loads((reported / "scores.json").read_text())
    source = (reported / "report.html").read_text()
    page = Page(source)
    for name in ("attribute_micro", "question_macro", "category_macro"):
        assert f"{scores['averages'][name]['strict']['value']:.2f}" in page.said
    for name, values in (*published.TABLE2, *published.TABLE3):
        assert name in page.said
        assert all(f"{v:.3f}" in page.said for v in values)
    cases = [a for tag, a in page.tags if tag == "details" and (a.get("class") or "").startswith("case")]
    kinds = {(a["class"] or "").split()[1] for a in cases}
    assert {"bml", "cartilage", "meniscus", "unread", "right"} <= kinds
    pictures = [a["href"] for tag, a in page.tags if tag == "image"]
    assert len(pictures) == 3 * len(cases), "three planes each"
    boxes = [
        (a.get("class") or "").split()
        for tag, a in page.tags
        if tag == "rect" and (a.get("class") or "").startswith("box")
    ]
    assert sum("truth" in b for b in boxes) >= 30
    assert sum("model-0" in b for b in boxes) >= 15
    matrices = [a for tag, a in page.tags if tag == "table" and a.get("class") == "matrix"]
    assert len(matrices) == len(scores["diagnosis"]["attributes"])
    assert len(source) < 3_000_000
    ids = {a["id"] for _, a in page.tags if a.get("id")}
    targets = {
        (a["href"] or "")[1:] for tag, a in page.tags if tag == "a" and (a.get("href") or "").startswith("#")
    }
    assert targets <= ids, "contents lead somewhere"
    assert len(targets) >= 9
    first = source.index('class="verdict"')
    assert first < source.index("<nav"), "the verdict stands first"
    assert 4 <= sum(tag == "li" for tag, _ in Page(source[first : source.index("</ul>", first)]).tags) <= 5
    assert "answers could be read" in page.said


def test_links_open_the_rows_that_a_number_counts(reported: Path, release: Path) -> None:
    from urllib.parse import parse_qs

    page = Page((reported / "report.html").read_text())
    asked = [
        parse_qs((a["href"] or "").split("#")[1])
        for tag, a in page.tags
        if tag == "a" and (a.get("href") or "").startswith(VIEWER)
    ]
    ids = {q["id"][0] for q in asked if "id" in q}
    assert ids <= set(read_truth(release, "train").ids)
    assert len(ids) >= 10
    assert {q["region"][0] for q in asked if "region" in q} <= set(REGIONS)
    for structure in STRUCTURES:
        by = structure_filter(structure)
        named = {
            q.id
            for q in TABLE
            if by.get("region") in (None, q.region.id)
            and by.get("text", "") in f"{q.id} {q.lesion.title}, {q.region.title}".lower()
        }
        assert named == {q.id for q in TABLE if q.region.structure == structure}, "its rows, and no others"
    lowest = [q for q in asked if q.get("sort") == ["iou"]]
    assert {q["text"][0] for q in lowest if "text" in q} == {
        "patella_",
        "femur_",
        "tibia_",
        "meniscus_",
        "synovitis",
    }
    known = {"id", "split", "category", "region", "verdict", "model", "sort", "text"}
    assert {name for q in asked for name in q} <= known, "what the viewer can filter by"


def test_no_interval_without_width_and_sensible_plurals() -> None:
    wide, flat = ({"value": 0.5, "low": low, "high": 0.75, "n": 3} for low in (0.25, 0.75))
    none = {"value": None, "low": None, "high": None, "n": 0}
    assert (interval(wide, 2), interval(flat), interval(none)) == ("0.25 to 0.75", "", "")
    assert (told(wide), told(flat), told(none)) == ("0.50 (0.25 to 0.75)", "0.50", "–")
    assert (share(wide), share(flat)) == ("50 % (25 to 75 %)", "50 %")
    assert [count(n, "patient") for n in (0, 1, 2000)] == ["0 patients", "1 patient", "2,000 patients"]
    assert count(2, "box", "boxes") == "2 boxes"
    assert unbroken("40 % of") == "40\u00a0% of"
    assert [listed(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    better = {"value": 0.8, "low": 0.7, "high": 0.9, "n": 9}
    plain = {**flat, "value": 0.5}
    assert verdict.against(better, plain) == "better"
    assert verdict.against({**better, "low": 0.4}, plain) == "same"
    assert verdict.against({"value": 0.2, "low": 0.1, "high": 0.3, "n": 9}, plain) == "worse"
    assert verdict.against(flat, plain) == "plain", "one patient: nothing can be said"


def test_readers_who_agree_are_the_ceiling(release: Path) -> None:
    truth = read_truth(release, "train")
    known = truth.grades != NONE
    second = np.where(known & (np.arange(len(truth)) % 2 == 0)[:, None], truth.grades, NONE).astype(np.int8)
    second[::4] = np.where(second[::4] == NONE, NONE, 0)
    predicted = Predictions.empty(len(truth))
    predicted.grades[:], predicted.status[:] = truth.grades, 0
    scores = score_arrays(
        replace(truth, second=second), predicted, None, samples=20, header={"split": "train"}
    ).scores
    lines = [line.text for line in verdict.verdict(scores, 0) if line.text.startswith("Readers")]
    assert len(lines) == 1
    assert f"{int((second != NONE).sum()):,} grades that were read twice" in lines[0]
    assert "mean weighted kappa 1.00" in lines[0]
    alone = score_arrays(
        replace(truth, second=None), predicted, None, samples=20, header={"split": "train"}
    ).scores
    assert not [line for line in verdict.verdict(alone, 0) if line.text.startswith("Readers")]


def test_the_verdict_is_five_lines_at_most(release: Path) -> None:
    """Better in one category, worse in another, with readers beside: still five, and each claim is tested."""
    truth = read_truth(release, "train")
    category = np.array([q.category.id for q in TABLE])[truth.question]
    asked = truth.grades != NONE
    predicted = Predictions.empty(len(truth))
    said = np.where(category == "bml", truth.grades.T, np.where(category == "cartilage", 3, 0)).T
    predicted.grades[:], predicted.status[:] = np.where(asked, said, NONE), 0
    second = np.where(asked, truth.grades, NONE).astype(np.int8)
    patients = np.arange(len(truth)) % 40  # enough for a test to pass
    many = replace(
        truth, second=second, patient=patients.astype(np.int32), patients=tuple(map(str, range(40)))
    )
    guesses = {"majority": predict("majority", truth, many)}
    scores = score_arrays(many, predicted, guesses, samples=400, header={"split": "train"}).scores
    lines = verdict.verdict(scores, 0)
    assert [line.text.split(":")[0].split(" ")[0] for line in lines] == [
        "No", "Grades", "Places", "Categories", "Readers",
    ]  # fmt: skip
    where = lines[3].text
    assert "knows more than frequencies in BML" in where
    assert "knows less than frequencies in Cartilage" in where
    assert scores["evidence"]["categories"]["bml"]["beaten"]
    assert not scores["evidence"]["categories"]["cartilage"]["beaten"]


def test_a_part_is_reported_and_other_grades_are_told(release: Path, tmp_path: Path) -> None:
    file = written(tmp_path, perfect(read_truth(release, "train")))
    asked = ("score", file, release, "--split", "train", "--questions", "acl,pcl", "--bootstrap", "0")
    assert command(*asked, "--out", tmp_path / "part") == 0
    write_page(release, [tmp_path / "part"], [file], tmp_path / "part.html")
    assert Page((tmp_path / "part.html").read_text()).said
    scores = json.loads((tmp_path / "part" / "scores.json").read_text())
    scores["protocol"]["truth"] = "0" * 16
    (tmp_path / "part" / "scores.json").write_text(json.dumps(scores))
    with pytest.raises(ReasonKneeError, match="S053"):
        write_page(release, [tmp_path / "part"], [file], tmp_path / "part.html")


def test_two_models_in_one_page(release: Path, tmp_path: Path) -> None:
    truth = read_truth(release, "train")
    sure = [{**line, "confidence": 0.9} for line in perfect(truth)]
    files = [written(tmp_path, lines, name) for name, lines in (("good", sure), ("bad", spoiled(truth, 4)))]
    for file in files:
        assert (
            command(
                "score", file, release, "--split", "train", "--out", tmp_path / file.stem, "--bootstrap", "30"
            )
            == 0
        )
    out = tmp_path / "two.html"
    done = run(
        "report",
        release,
        tmp_path / "good",
        tmp_path / "bad",
        "--predictions",
        files[0],
        "--predictions",
        files[1],
        "--out",
        out,
    )
    assert done.returncode == 0, done.stderr
    page = Page(out.read_text())
    assert "good minus bad" in page.said
    assert ("says 0.90" in page.said, "bad carry no confidence" in page.said) == (True, True)
    assert re.search(r"grades right \+0\.\d{3}; IoU \+0\.\d{3}\.", page.said), (
        "no interval on so few patients"
    )
    assert [a["class"] for tag, a in page.tags if tag == "h1"] == ["model-0", "model-1"]
    words = [line["response"] for line in map(json.loads, files[1].read_text().splitlines())]
    assert any(w[:80] in page.said for w in words)
    without = tmp_path / "without.html"
    write_page(release, [tmp_path / "bad"], [], without)
    assert "the words are in the predictions" in without.read_text()
    assert (
        command(
            "score",
            written(tmp_path, perfect(read_truth(release, "test")), "other"),
            release,
            "--out",
            tmp_path / "other",
            "--bootstrap",
            "0",
        )
        == 0
    )
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "scores.json").write_text('{"scores_version": 0}')
    for code, folders in (
        ("O001", ["good", "bad", "good"]), ("O002", ["good", "other"]), ("O004", ["old"]), ("O005", ["nowhere"]),
    ):  # fmt: skip
        with pytest.raises(ReasonKneeError, match=code):
            write_page(release, [tmp_path / name for name in folders], [], out)


def test_without_jinja2_all_but_the_page_is_written(release: Path, tmp_path: Path) -> None:
    """The extra `report` brings it: a scorer in a bare installation still scores."""
    path = written(tmp_path, perfect(read_truth(release, "test")))
    hide = "import sys; sys.modules['jinja2'] = None; from reasonknee.__main__ import main; main()"
    arguments = ["score", path, release, "--out", tmp_path / "out", "--bootstrap", "0"]
    done = subprocess.run(
        [sys.executable, "-c", hide, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "rows.parquet").is_file()
    assert not (tmp_path / "out" / "report.html").exists()
    assert "reasonknee[report]" in done.stdout
    again = subprocess.run(
        [
            sys.executable,
            "-c",
            hide,
            "report",
            str(release),
            str(tmp_path / "out"),
            "--out",
            str(tmp_path / "x.html"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == 2
    assert "O003" in again.stderr


@pytest.mark.parametrize("orientation", ["LIP", "RSA", "LSP", "RIA"])
def test_planes_hang_as_radiologists_have_them(orientation: str) -> None:
    """One bright corner of a box tells the way: whichever way the voxels run, it is seen at the same place."""
    shape, spacing = (12, 20, 30), (1.5, 0.8, 0.5)
    affine = np.zeros((4, 4))
    affine[1, 0], affine[2, 1], affine[0, 2], affine[3, 3] = 0.5, 0.8, 1.5, 1
    for column, row, letter, axis in ((0, 1, "A", 2), (1, 2, "S", 1), (2, 0, "R", 0)):
        affine[row, column] *= 1 if orientation[axis] == letter else -1
    grid = Grid(shape, affine)
    assert grid.orientation == orientation
    array = np.zeros(shape, np.int16)
    ends = [n - 1 if letter in "LIP" else 0 for n, letter in zip(shape, orientation, strict=True)]
    box = Box(*(v for n, end in zip(shape, ends, strict=True) for v in ((n - 3, n) if end else (0, 3))))
    array[box.slices] = 100  # the corner that is left, inferior and posterior
    for plane in planes(Volume(array, grid), [box]):
        left, top, width, height = plane.rectangle(box)
        wide, high = plane.size_mm
        assert plane.cuts(box)
        assert left + width == pytest.approx(wide), plane.name
        assert top + height == pytest.approx(high), plane.name
        rows, columns = np.nonzero(plane.pixels)
        down, right = plane.pixels.shape
        assert (columns.min() * wide / right, rows.min() * high / down) == pytest.approx((left, top))
        assert (
            plane.letters
            == {
                "sagittal": ("A", "P", "S", "I"),
                "coronal": ("R", "L", "S", "I"),
                "axial": ("R", "L", "A", "P"),
            }[plane.name]
        )
        assert spacing == pytest.approx(plane.spacing)


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
    card = (reported / "model-index.yaml").read_text()
    assert "huggingface.co" not in card, "a synthetic release lies nowhere on the Hub"
    hub = pytest.importorskip("huggingface_hub")
    if hasattr(hub, "parse_eval_result_entries"):
        assert len(hub.parse_eval_result_entries(entries)) == len(entries)


def test_nothing_wrong_and_no_voxels(release: Path, tmp_path: Path) -> None:
    """A perfect model has right cases alone; a release without voxels has cases without pictures."""
    truth = read_truth(release, "test")
    path = written(tmp_path, perfect(truth))
    write_report(score(path, release, samples=10), tmp_path / "perfect", release, path)
    said = (tmp_path / "perfect" / "report.html").read_text()
    assert 'class="case right"' in said
    assert 'class="case bml"' not in said
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
    assert plain_text("a\ud800\x00\u202eb\nc") == "a?\ufffd\ufffdb\nc"


def test_cases_are_of_many_questions() -> None:
    """Two visits of a knee that are equally bad are one case, as long as another question went wrong."""
    question = np.array([4, 4, 7, 4, 7, 9])
    assert _varied(np.array([1, 0, 5, 2, 4]), question) == [1, 5, 2, 0, 4]
    assert _varied(np.array([], np.int64), question) == []
