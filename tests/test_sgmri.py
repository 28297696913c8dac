"""SGMRI-VQA from sources to a score, on a synthetic cohort; and each fault of the public tables and scorer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import command, needs
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.sgmri import (
    answers,
    baselines,
    fastmri_plus,
    frames,
    images,
    measures,
    published,
    scores,
)
from reasonknee.sgmri.command import write_baselines
from reasonknee.sgmri.derive import Deriving, derive
from reasonknee.sgmri.fastmri_plus import AnnotatedVolume
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.records import Answer, Finding, Record, read_records

needs("rouge_score")


@pytest.fixture(scope="module")
def scans(sgmri: Path) -> Path:
    return sgmri / "scans"


@pytest.fixture(scope="module")
def qa(sgmri: Path) -> Path:
    return sgmri / "qa"


def record(task: str, answer: Answer, boxes: tuple[FrameBox, ...] = (), **more: object) -> Record:
    values = {"level": "slice", "frame": 4} | more
    return Record(
        id="x", anatomy="knee", split="test", task=task, source="derived", volume_id="file9000001", question="?",
        answer=answer, findings=(Finding("Mass", boxes),) if boxes else (), **values,  # type: ignore[arg-type]
    )  # fmt: skip


YES_NO = record("detection", Answer("yes_no", "Yes", yes=True))
COUNT = record("counting", Answer("count", "3", count=3), level="volume", frame=None)
CHOICE = record(
    "classification",
    Answer("single_choice", "B", letters=("B",)),
    choices={"A": "a mass", "B": "edema", "C": "cyst", "D": "none of these"},
)
CHOICES = replace(CHOICE, task="diagnosis", answer=Answer("multiple_choice", "B, D", letters=("B", "D")))


# --- frames -------------------------------------------------------------------------------------------------

corner = st.integers(0, 60)
length = st.integers(1, 20)


@given(corner, length, corner, length, corner, length)
def test_a_3d_box_to_frames_and_back_is_exact(z: int, d: int, y: int, h: int, x: int, w: int) -> None:
    box = Box(z, z + d, y, y + h, x, x + w)
    assert frames.hull(frames.frames_of(box)) == box


@given(
    st.lists(st.builds(FrameBox.from_xywh, st.integers(0, 5), corner, corner, length, length), max_size=12)
)
def test_instances_are_a_partition(boxes: list[FrameBox]) -> None:
    found = frames.instances(boxes)
    assert sorted(box for group in found for box in group) == sorted(boxes)
    assert len(frames.instances(boxes, 0.5)) >= len(found)


def test_one_thing_over_frames_is_counted_once() -> None:
    one = [FrameBox(z, 10, 20, 10, 20) for z in (3, 4, 5)]
    other = [FrameBox(z, 40, 50, 40, 50) for z in (4, 9)]
    assert len(frames.instances(one + other)) == 3  # the other one is not seen between frames 4 and 9


# --- sources ------------------------------------------------------------------------------------------------


def test_every_fault_of_the_tables_is_handled_and_counted(scans: Path) -> None:
    counts: Counter[str] = Counter()
    folder = scans / "annotations"
    volumes = fastmri_plus.read_table(folder / "brain.csv", counts, folder / "brain_file_list.csv")
    known = ("Z101", "Z102", "Z103", "Z104", "Z105", "Z106", "Z108")
    assert {code: counts[code] for code in known} == dict.fromkeys(known, 1)
    assert len(volumes) == 4
    assert [v.is_negative for v in volumes].count(True) == 1
    assert all(0 <= b.y0 < b.y1 for v in volumes for boxes in v.boxes.values() for b in boxes)


def test_blanks_around_a_label_are_taken_off(tmp_path: Path) -> None:
    table = tmp_path / "knee.csv"
    table.write_text(",".join(fastmri_plus.COLUMNS) + "\nfile9000001,3,No,5,6,7,8,Joint Effusion \n")
    counts: Counter[str] = Counter()
    (volume,) = fastmri_plus.read_table(table, counts)
    assert volume.boxes == {"Joint Effusion": [FrameBox(3, 6, 14, 5, 12)]}
    assert counts["Z101"] == 1


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("../etc/passwd,3,No,5,6,7,8,Mass", "Z003"),
        ("file9000001,3,No,five,6,7,8,Mass", "Z004"),
        ("file9000001,3,No,1e9,6,7,8,Mass", "Z004"),
        ("file9000001,3,No,5,6,7,8", "T004"),
    ],
)
def test_a_bad_row_is_one_error(tmp_path: Path, row: str, code: str) -> None:
    table = tmp_path / "knee.csv"
    table.write_text(",".join(fastmri_plus.COLUMNS) + f"\n{row}\n")
    with pytest.raises(DataError) as refused:
        fastmri_plus.read_table(table, Counter())
    assert refused.value.code == code
    assert "knee.csv:2" in str(refused.value)


def test_published_and_derived_questions_say_the_same(scans: Path) -> None:
    """Both ways of counting frames, choices in a question's text, boxes in a text alone, absolute paths."""
    counts: Counter[str] = Counter()
    read = {r.id: r for r in published.read_published(scans / "published", counts)}
    assert counts["Z201"]
    assert counts["Z202"]
    assert counts["Z205"]
    assert {r.first_frame for r in read.values()} == {0, 1}
    own: dict[tuple[object, ...], Record] = {}
    for anatomy in ("knee", "brain"):
        clean = _drawn(scans, anatomy)
        for volume in clean:
            scan = images.read_scan(next((scans / "images").rglob(f"{volume.volume_id}.h5")))
            for r in derive(volume, scan.split or "", Deriving(1, 2), None, scan.shape[0]):
                own[r.volume_id, r.frame, r.level, r.task] = r
    for r in read.values():
        mine = own[r.volume_id, r.frame, r.level, r.task]
        assert (r.answer.kind, r.answer.yes, r.answer.count, r.answer.letters) == (
            mine.answer.kind, mine.answer.yes, mine.answer.count, mine.answer.letters
        )  # fmt: skip
        if r.task == "localization":
            assert sorted(r.boxes) == sorted(mine.boxes)
    assert len(read) == len(own)


def _drawn(scans: Path, anatomy: str) -> list[fastmri_plus.AnnotatedVolume]:
    """The volumes as they were drawn: the table without the faults that its last five rows plant."""
    lines = (scans / "annotations" / f"{anatomy}.csv").read_text().splitlines()
    with TemporaryDirectory() as folder:
        copy = Path(folder, f"{anatomy}.csv")
        copy.write_text("\n".join(lines[:-5]) + "\n")
        return fastmri_plus.read_table(copy, Counter(), scans / "annotations" / f"{anatomy}_file_list.csv")


def test_the_same_seed_gives_the_same_questions_and_detection_is_balanced(scans: Path) -> None:
    volumes = [v for a in ("knee", "brain") for v in _drawn(scans, a)]
    first, again = ([r for v in volumes for r in derive(v, "train", Deriving(5))] for _ in range(2))
    assert first == again
    assert len({r.id for r in first}) == len(first)
    yes = [r.answer.yes for r in first if r.task == "detection"]
    assert 0.2 < sum(map(bool, yes)) / len(yes) < 0.8
    for r in first:
        for letter in r.answer.letters:
            assert letter in r.choices


def test_what_is_said_is_english() -> None:
    """A study without a box is not "shows normal for age", and one frame is not "they"."""
    boxes = {"Mass": [FrameBox(3, 5, 9, 5, 9)]}
    said = {}
    for name, volume in {
        "normal": AnnotatedVolume("v", "brain", {}, ["Normal for age"]),
        "noted": AnnotatedVolume("v", "brain", {}, ["Motion artifact", "Normal for age"]),
        "empty": AnnotatedVolume("v", "brain"),
        "mass": AnnotatedVolume("v", "brain", boxes, ["Motion artifact", "Normal for age"]),
    }.items():
        made = [
            r for r in derive(volume, "train", Deriving()) if (r.level, r.task) == ("volume", "captioning")
        ]
        said[name] = made[0].answer.text, made[0].reasoning[:-1]
    about = "This volume of a brain MRI"
    assert said == {
        "normal": (f"{about} is normal for age.", ("Go through all frames: none shows a finding.",)),
        "noted": (f"{about} shows motion artifact (whole study). It is otherwise normal for age.",
                  ("Go through all frames: none shows a finding.",
                   "Of the whole study, the readers name motion artifact, without a box.")),
        "empty": (f"{about} shows no finding.", ("Go through all frames: none shows a finding.",)),
        "mass": (f"{about} shows a mass and motion artifact (whole study). The mass: frame 3.",
                 ("Look at frame 3.", "It shows a mass: Frame 3: <bbx>[5, 5, 4, 4]</bbx>.",
                  "Of the whole study, the readers name motion artifact, without a box.")),
    }  # fmt: skip


def test_images_are_upside_down_and_findings_stand_out(scans: Path) -> None:
    volume = next(v for v in _drawn(scans, "knee") if v.boxes)
    path = images.find_scans(scans / "images")[volume.volume_id]
    with images.FastMriFile(path) as file:
        shown = file.frames("volume").astype(float)
        by_slice = file.frames("slice")
    assert by_slice.max(axis=(1, 2)).tolist() == [255] * len(by_slice)
    gaps = []
    for boxes in volume.boxes.values():
        box = boxes[len(boxes) // 2]
        middle = shown[box.frame, box.y0 + 2 : box.y1 - 2, box.x0 + 2 : box.x1 - 2]
        same_place = shown[(box.frame + len(shown) // 2) % len(shown), box.y0 : box.y1, box.x0 : box.x1]
        gaps.append(abs(middle.mean() - same_place.mean()))
    assert max(gaps) > 25


def test_a_file_that_is_no_reconstruction_is_refused(tmp_path: Path) -> None:
    import h5py

    (tmp_path / "lie.h5").write_text("hello")
    with pytest.raises(DataError, match="E001"):
        images.read_scan(tmp_path / "lie.h5")
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["reconstruction_rss"] = [[1.0]]
    with pytest.raises(DataError, match="E004"):
        images.read_scan(tmp_path / "flat.h5")
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file.create_dataset("reconstruction_rss", data=[[[1] * 8] * 8], dtype="i4")
    with pytest.raises(DataError, match="E005"):
        images.read_scan(tmp_path / "whole.h5")


# --- a model's words: each fault of the public scorer -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("This looks abnormal, so the answer is yes.", True),  # "no" inside "abnormal" is no "no"
        ("No abnormality is seen.", False),
        ("Yes, although there is no effusion.", True),
        ("There is no tear; yes, it could be one.", None),  # both ways: not read
        ("I cannot tell.", None),
        ('{"reasoning": "no frame ...", "answer": "Yes", "bboxes": []}', True),
        ("<think>no, no</think>Yes", True),
        ("<think>yes", None),
    ],
)
def test_yes_and_no(text: str, yes: bool | None) -> None:
    assert answers.read(YES_NO, text).yes is yes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("3", 3),
        ("There are 3 lesions.", 3),
        ("3 lesions on frames 10 to 14", None),  # the last number is not the count
        ("The count is 3, on frames 10 to 14.", 3),
        ("2.5", None),
        ("33 %", None),
        ("many", None),
    ],
)
def test_counts(text: str, count: int | None) -> None:
    assert answers.read(COUNT, text).count == count


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("B", ("B",)),
        ("(B) edema", ("B",)),
        ("The answer is B.", ("B",)),
        ("There is a small edema.", ("B",)),  # the article is no choice
        ("A) or B) could be", ()),  # the alphabetically first does not win
        ("edema", ("B",)),
        ("E", ()),
    ],
)
def test_one_choice(text: str, letters: tuple[str, ...]) -> None:
    assert answers.read(CHOICE, text).letters == letters


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("It shows an extra-axial mass.", ("B",)),  # not also a mass
        ("It shows a mass.", ("A",)),
        ("There is no mass.", ()),  # nothing tells which of the others it is
        ("No finding.", ("C",)),
        ("A mass, without edema.", ()),
    ],
)
def test_the_words_of_a_choice(text: str, letters: tuple[str, ...]) -> None:
    choices = {"A": "mass", "B": "extra-axial mass", "C": "no finding"}
    asked = record("classification", Answer("single_choice", "B", letters=("B",)), choices=choices)
    assert answers.read(asked, text).letters == letters


def test_several_choices_are_all_kept() -> None:
    assert answers.read(CHOICES, "B, D").letters == ("B", "D")
    assert answers.read(CHOICES, "BD").letters == ("B", "D")
    assert measures.measure(CHOICES, answers.read(CHOICES, "B")).a == pytest.approx(2 / 3)


BOX = FrameBox(4, 20, 60, 10, 40)
LOCAL = record("localization", Answer("text", "Frame 4: <bbx>[10, 20, 30, 40]</bbx>"), (BOX,))
VOLUME = replace(LOCAL, level="volume", frame=None)


@pytest.mark.parametrize(
    "text",
    [
        "<bbx>[10, 20, 30, 40]</bbx>",  # wider than its left edge is far: not taken for corners
        "[10, 20, 30, 40]",
        '{"answer": "here", "bboxes": [{"frame": 1, "label": "Mass", "bbox": [10, 20, 30, 40]}]}',
        '[{"bbox_2d": [10, 20, 40, 60], "label": "mass"}]',
        "<|box_start|>(10,20),(40,60)<|box_end|>",
    ],
)
def test_boxes_in_every_form(text: str) -> None:
    assert answers.read(LOCAL, text).boxes == [BOX]


def test_boxes_in_thousandths_need_the_size_of_the_image() -> None:
    text = '[{"box_2d": [62, 31, 188, 125]}]'
    assert answers.read(LOCAL, text).boxes == []
    assert answers.read(LOCAL, text, answers.Image(320, 320)).boxes == [BOX]
    far = record("localization", LOCAL.answer, (FrameBox(4, 280, 300, 290, 310),))
    said = answers.read(far, "[290, 280, 20, 20]")  # larger than 256 is still a pixel
    assert measures.measure(far, said).v == 1


def test_a_box_on_a_volume_needs_its_frame() -> None:
    assert answers.read(VOLUME, "Frame 4: [10, 20, 30, 40]").boxes == [BOX]
    nowhere = answers.read(VOLUME, "[10, 20, 30, 40]")  # no frame is not frame 1
    assert nowhere.boxes == []
    assert "without a frame" in nowhere.problems[0]
    brain = replace(VOLUME, first_frame=1)
    assert answers.read(brain, "Frame 5: [10, 20, 30, 40]").boxes == [BOX]


@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    for asked in (YES_NO, COUNT, CHOICE, CHOICES, LOCAL, VOLUME):
        answers.read(asked, text)


# --- scores -------------------------------------------------------------------------------------------------


def test_a_grid_of_boxes_gets_v_and_no_f1() -> None:
    grid = [FrameBox(4, y, y + 40, x, x + 30) for y in range(0, 280, 20) for x in range(0, 280, 10)]
    v, hits = measures.box_scores([BOX], grid)
    assert v == 1
    matched, predicted, true = hits[2]
    assert (matched, true) == (1, 1)
    assert 2 * matched / (predicted + true) < 0.01


def test_matching_is_one_to_one_and_within_a_frame() -> None:
    twice = [BOX, BOX]
    assert measures.box_scores([BOX], twice)[0] == 1
    assert measures.box_scores(twice, [BOX])[0] == 0.5
    assert measures.box_scores([BOX], [BOX._replace(frame=5)])[0] == 0


def test_perfect_words_score_one_and_an_item_without_boxes_stays_in_the_mean(qa: Path) -> None:
    asked = list(read_records(qa / "qa.jsonl"))
    test = [r for r in asked if r.split == "test"]
    words = {r.id: r.answer.text for r in test}
    full = scores.score(words, asked, scores.Scoring(samples=20))
    for level in full.scores["levels"].values():
        for name, entry in level["columns"].items():
            assert entry["value"] == (None if name.endswith("AR") else 1)
        assert level["average"] is None  # AR has parts that are not there
    silent = next(r for r in test if r.task == "localization" and r.level == "slice")
    less = scores.score(words | {silent.id: ""}, asked, scores.Scoring(samples=20)).scores
    column = less["levels"]["slice"]["columns"]["localization V"]
    assert column["n"] == full.scores["levels"]["slice"]["columns"]["localization V"]["n"]
    assert column["value"] < 1
    assert less["statuses"]["unread"] == 1
    unsaid = next(r for r in test if r.task == "captioning")
    mute = scores.score(words | {unsaid.id: " "}, asked, scores.Scoring(samples=0)).scores
    assert mute["statuses"]["unread"] == 1, "no words to a caption are no answer"


def test_ar_is_given_only_with_all_of_its_parts(qa: Path) -> None:
    asked = [r for r in read_records(qa / "qa.jsonl") if r.split == "test"]
    words = {r.id: r.answer.text for r in asked}
    part = scores.TextPart("made up for a test", {r.id: 0.5 for r in asked})
    options = scores.Scoring(samples=0, judge=part, bertscore=part)
    column = scores.score(words, asked, options).scores["levels"]["slice"]["columns"]["captioning AR"]
    assert column["value"] == pytest.approx(0.4 * 0.5 + 0.6 * (0.5 + 1 + 1) / 3, abs=0.02)
    torn = replace(options, judge=scores.TextPart("torn", {}))
    with pytest.raises(DataError, match="Z025"):
        scores.score(words, asked, torn)


def test_intervals_are_by_patient_where_patients_are_known(qa: Path) -> None:
    asked = list(read_records(qa / "qa.jsonl"))
    assert scores.score({}, asked, scores.Scoring(samples=0)).scores["by"] == "patient"
    unknown = [replace(r, patient=None) for r in asked]
    assert scores.score({}, unknown, scores.Scoring(samples=0)).scores["by"] == "volume"


def test_from_sources_to_a_report(scans: Path, qa: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    assert command("sgmri", "baselines", qa, tmp_path / "base") == 0
    assert {p.stem for p in (tmp_path / "base").glob("*.jsonl")} == set(baselines.NAMES)
    answer = [json.loads(line) for line in (tmp_path / "base" / "majority.jsonl").read_text().splitlines()]
    answer[0]["response"] = "<script>alert(1)</script>"
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answer))
    out = tmp_path / "scores"
    assert command("sgmri", "score", tmp_path / "p.jsonl", qa, "--out", out, "--model", "<b>m</b>") == 0
    made = json.loads((out / "scores.json").read_text())
    assert set(made["baselines"]) == set(baselines.NAMES)
    page = (out / "report.html").read_text()
    assert "<b>m</b>" not in page
    assert "<script" not in page
    assert page.count("(published)") == 7
    heads = [line for line in (out / "scores.md").read_text().splitlines() if line.startswith("| model")]
    assert heads[1].startswith("| model | V | F1 at 0.1 | F1 at 0.25 | F1 at 0.5 | precision")
    assert (
        heads[2]
        == "| model | localization BLEU | localization ROUGE-L | captioning BLEU | captioning ROUGE-L |"
    )
    assert len(heads) == 6
    rows = pq.read_table(out / "rows.parquet")
    assert rows.num_rows == made["items"] == len(answer)
    assert rows["a"].null_count < rows.num_rows
    assert command("sgmri", "score", tmp_path / "p.jsonl", scans / "published", "--out", tmp_path / "s2") == 0


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["construct", "{new}"], "Z015", 2),
        (["construct", "{new}", "--published", "{empty}"], "Z006", 3),
        (["construct", "{empty}", "--published", "{published}"], "Z012", 2),
        (["construct", "{new}", "--annotations", "{table}", "--images", "{new}"], "Z010", 3),
        (["construct", "{new}", "--annotations", "{table}", "--splits", "{table}"], "Z013", 3),
        (["phantom", "{empty}"], "Z012", 2),
        (["baselines", "{new}", "{new}"], "Z016", 3),
        (["score", "{table}", "{published}", "--out", "{new}", "--qwen", "inches"], "Z018", 2),
        (["score", "{bad}", "{published}", "--out", "{new}"], "Z021", 3),
        (["score", "{twice}", "{published}", "--out", "{new}"], "Z022", 3),
        (["score", "{good}", "{published}", "--out", "{new}", "--judge", "{good}"], "Z019", 2),
        (["score", "{good}", "{published}", "--out", "{new}", "--judge", "{good}", "--judge-name", "x"], "Z023", 3),
    ],
)  # fmt: skip
def test_refusals(
    words: list[str],
    code: str,
    exit_code: int,
    scans: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    lines = {
        "bad": [{"id": 3}],
        "twice": [{"id": "a", "response": ""}] * 2,
        "good": [{"id": "a", "response": ""}],
    }
    for name, rows in lines.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {name: tmp_path / name for name in ("new", "empty", *lines)}
    places |= {"published": scans / "published", "table": scans / "annotations" / "knee.csv"}
    assert command("sgmri", *(word.format(**places) for word in words)) == exit_code
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"error {code}: ")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"task": "guessing"}, "Z007"),
        ({"volume_id": "../../etc"}, None),  # the name alone counts
        ({"volume_id": ""}, "Z008"),
        ({"slice_num": "four"}, "Z009"),
        ({"question": ""}, None),
    ],
)
def test_published_questions_that_are_odd(
    change: dict[str, object], code: str | None, tmp_path: Path
) -> None:
    item = {"volume_id": "file9000001", "slice_num": 4, "task": "detection", "type": "closed_ended",
            "question": "Is it?", "answer": "Yes", "ground_truth": {}}  # fmt: skip
    folder = tmp_path / "knee" / "test" / "image_qa"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps([item | change]))
    if code:
        with pytest.raises(DataError, match=code):
            list(published.read_published(tmp_path, Counter()))
    else:
        assert len(list(published.read_published(tmp_path, Counter()))) == (0 if "question" in change else 1)


def test_what_is_odd_in_published_questions_is_counted(tmp_path: Path) -> None:
    item = {"volume_id": "file9000001", "slice_num": 4, "task": "detection", "type": "closed_ended",
            "question": "Is it?", "answer": "Yes", "ground_truth": {}}  # fmt: skip
    odd = [
        item,
        item,  # Z207
        item | {"question": "Another?", "answer": "Perhaps"},  # Z204
        item | {"question": ""},  # Z206
        item
        | {
            "question": "Where?",
            "ground_truth": {"bboxes": [{"x": 1, "y": 2, "width": 0, "height": 3}]},
        },  # Z203
    ]
    folder = tmp_path / "knee" / "test" / "image_qa"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps(odd))
    counts: Counter[str] = Counter()
    assert len(list(published.read_published(tmp_path, counts))) == 4
    assert {code: counts[code] for code in ("Z203", "Z204", "Z206", "Z207")} == dict.fromkeys(
        ("Z203", "Z204", "Z206", "Z207"), 1
    )


def test_overlaps_and_unknown_labels_of_a_table_are_counted(tmp_path: Path) -> None:
    table = tmp_path / "knee.csv"
    rows = ["3,No,5,6,20,20,Meniscus Tear", "3,No,6,6,20,20,Meniscus Tear", "4,No,5,6,20,20,New thing"]
    table.write_text(
        "\n".join([",".join(fastmri_plus.COLUMNS), *(f"file9000001,{row}" for row in rows)]) + "\n"
    )
    counts: Counter[str] = Counter()
    fastmri_plus.read_table(table, counts)
    assert (counts["Z105"], counts["Z107"]) == (1, 1)


def test_lines_that_are_no_records(qa: Path, tmp_path: Path) -> None:
    first = (qa / "qa.jsonl").read_text().splitlines()[0]
    (tmp_path / "twice.jsonl").write_text(f"{first}\n{first}\n")
    with pytest.raises(DataError, match="Z002"):
        list(read_records(tmp_path / "twice.jsonl"))
    (tmp_path / "bad.jsonl").write_text(json.dumps(json.loads(first) | {"task": "guessing"}) + "\n")
    with pytest.raises(DataError, match="Z001"):
        list(read_records(tmp_path / "bad.jsonl"))


def test_a_file_in_two_folders_and_a_list_that_is_no_text(scans: Path, tmp_path: Path) -> None:
    path = next((scans / "images").rglob("*.h5"))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / path.name).symlink_to(path)
    with pytest.raises(DataError, match="Z011"):
        images.find_scans(tmp_path)
    (tmp_path / "list.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="Z005"):
        fastmri_plus.read_table(scans / "annotations" / "knee.csv", Counter(), tmp_path / "list.csv")


def test_a_patient_in_two_splits_is_refused(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "splits.json").write_text(json.dumps({"file9000001": "train", "file9000002": "test"}))
    table = scans / "annotations" / "knee.csv"
    words = ["--annotations", table, "--images", scans / "images", "--splits", tmp_path / "splits.json"]
    assert command("sgmri", "construct", tmp_path / "qa", *words) == 3
    assert capsys.readouterr().err.startswith("error Z014: ")
    assert not (tmp_path / "qa").exists()


def test_nothing_to_learn_from_and_nothing_to_score(qa: Path, tmp_path: Path) -> None:
    tests_alone = [line for line in (qa / "qa.jsonl").read_text().splitlines() if '"split":"test"' in line]
    (tmp_path / "qa.jsonl").write_text("\n".join(tests_alone) + "\n")
    with pytest.raises(DataError, match="Z017"):
        write_baselines(tmp_path, tmp_path / "base")
    with pytest.raises(DataError, match="Z024"):
        scores.score({}, [])


def test_a_text_is_stemmed_once_and_a_box_is_learnt_once(
    qa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model and each baseline are compared with the same references: they are not tokenized anew in each run."""
    from rouge_score import tokenize

    inner, stemmed, medians = tokenize.tokenize, Counter[str](), Counter[str]()

    def counted(text: str, stemmer: object) -> list[str]:
        stemmed[text] += 1
        return inner(text, stemmer)

    def median(values: Iterable[int], inner: Callable[[Iterable[int]], float] = baselines.median) -> float:
        medians["all"] += 1
        return inner(values)

    monkeypatch.setattr(tokenize, "tokenize", counted)
    monkeypatch.setattr(baselines, "median", median)
    measures._text_tools.cache_clear()
    measures.text_scores.cache_clear()
    records = list(read_records(qa / "qa.jsonl"))
    known = {r.id: f"{r.answer.text} indeed" for r in records if r.split == "test"}
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"id": i, "response": w}) + "\n" for i, w in known.items())
    )
    assert (
        command("sgmri", "score", tmp_path / "p.jsonl", qa, "--out", tmp_path / "scores", "--bootstrap", 0)
        == 0
    )
    assert stemmed
    assert set(stemmed.values()) == {1}
    assert medians["all"] <= 4 * 4 + 2 * 2  # sides of each anatomy and level, ends of each anatomy's run


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    measures._text_tools.cache_clear()
    measures.text_scores.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UsageError, match=r"Z020.*reasonknee\[sgmri\]"):
        measures.text_scores("a", "a")


def test_an_open_ended_count_is_scored(tmp_path: Path) -> None:
    """The public scorer gives it no score."""
    item = {"volume_id": "file9000001", "task": "counting", "type": "open_ended", "level": "volume",
            "question": "How many?", "answer": "3", "ground_truth": {}}  # fmt: skip
    folder = tmp_path / "knee" / "test" / "volume_qa"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps([item]))
    (asked,) = published.read_published(tmp_path, Counter())
    made = scores.score({asked.id: "There are 3."}, [asked], scores.Scoring(samples=0)).scores
    assert made["levels"]["volume"]["columns"]["counting"]["value"] == 1


@pytest.mark.parametrize("value", ["NaN", "1e999", "-0.1", '"high"', "null"])
def test_a_part_that_is_no_number_is_one_error_and_no_score(value: str, tmp_path: Path) -> None:
    """The public scorer stops at a NaN in the middle of its run."""
    (tmp_path / "judge.jsonl").write_text(f'{{"id": "a", "value": {value}}}\n')
    with pytest.raises(DataError):
        scores.read_part(tmp_path / "judge.jsonl", "a judge")
