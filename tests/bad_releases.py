"""Bad releases by the dozen, each made from a clean one with right hashes, and each with the code that it must raise.

What is wrong is mostly in the meaning: a number in a sentence, a box one voxel off, a wording of the neighbour. `bad_releases(clean)` lists them;
`spoil` makes one. A kind is a way to be wrong, its variants differ in question, place or value.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from reasonknee.layout import read_manifest
from reasonknee.questions import QUESTIONS

ROWS_ONLY = ["annotations"]
MISSING = object()


@dataclass(frozen=True)
class Bad:
    kind: str
    code: str
    fault: dict[str, Any]


def bad_releases(clean: Path) -> list[Bad]:
    """All of them, in an order that is the same each time."""
    knee = _Knee(clean)
    makers = (
        _grades,
        _reasoning,
        _wordings,
        _names,
        _boxes,
        _volumes,
        _sources,
        _voxels,
        _embeddings,
        _files,
        _card,
    )
    return [bad for make in (*makers, _croissant, _manifest, _parquet) for bad in make(knee)]


class _Knee:
    """The rows of the first volume of train, by question."""

    def __init__(self, clean: Path) -> None:
        shard = read_manifest(clean).of("annotations", "train")[0]
        rows = pq.read_table(clean / shard.path).to_pylist()
        self.volume = min(r["volume_id"] for r in rows)
        self.rows = {r["question_id"]: r for r in rows if r["volume_id"] == self.volume}
        self.random = random.Random(7)
        self.boxed = [q for q, r in self.rows.items() if r["box"]]

    def some(self, of: list[str], count: int) -> list[dict[str, Any]]:
        return [self.rows[q] for q in self.random.sample(of, count)]

    def any(self, count: int) -> list[dict[str, Any]]:
        return self.some(list(self.rows), count)

    def asking(self, attributes: int) -> list[str]:
        return [q for q in self.rows if len(QUESTIONS[q].attributes) >= attributes]


def _set(
    kind: str,
    code: str,
    row: dict[str, Any],
    *,
    derive: bool = False,
    only: list[str] | None = None,
    **to: Any,
) -> Bad:
    """One row of `annotations` with other values; dots of their names are written as `__`."""
    values = {name.replace("__", "."): value for name, value in to.items()}
    change = {"question": row["question_id"], "set": values, "derive": derive}
    return Bad(kind, code, {"only": ROWS_ONLY if only is None else only, "rows": [change]})


def _of_volume(kind: str, code: str, volume: int | str = 0, **to: Any) -> Bad:
    values = {name.replace("__", "."): value for name, value in to.items()}
    return Bad(kind, code, {"only": ROWS_ONLY, "rows": [{"volume": volume, "set": values}]})


def _everywhere(kind: str, code: str, row: dict[str, Any], derive: bool = True, **to: Any) -> Bad:
    values = {name.replace("__", "."): value for name, value in to.items()}
    return Bad(kind, code, {"rows": [{"question": row["question_id"], "set": values, "derive": derive}]})


# --- the meaning of rows ----------------------------------------------------------------------------------------------------------


def _other_grade(row: dict[str, Any], number: int = 0) -> tuple[str, int]:
    attribute = QUESTIONS[row["question_id"]].attributes[number]
    grades = list(attribute.space.grades)
    return attribute.id, grades[(row["grades"][attribute.id] + 1) % len(grades)]


def _grades(knee: _Knee) -> Iterator[Bad]:
    for row in knee.any(4):
        name, grade = _other_grade(row)
        yield _set("grade without its sentence", "X110", row, **{f"grades__{name}": grade})
    for row in knee.any(2):
        name, grade = _other_grade(row)
        fault = {
            "rows": [
                {
                    "configs": ROWS_ONLY,
                    "question": row["question_id"],
                    "set": {f"grades.{name}": grade},
                    "derive": True,
                }
            ]
        }
        yield Bad("grade in one config", "X107", fault)
    for row in knee.any(2):
        attribute = QUESTIONS[row["question_id"]].attributes[0]
        yield _set(
            "grade past its space", "X104", row, **{f"grades__{attribute.id}": len(attribute.space.grades)}
        )
    for row in knee.any(2):
        yield _set(
            "grade below zero",
            "X104",
            row,
            **{f"grades__{QUESTIONS[row['question_id']].attributes[0].id}": -1},
        )
    for row in knee.some(
        [
            q
            for q in knee.rows
            if "repair" not in knee.rows[q]["grades"] or knee.rows[q]["grades"]["repair"] is None
        ],
        2,
    ):
        yield _set("grade that is not asked", "X104", row, grades__repair=1)
    for row in knee.any(2):
        none = {f"grades__{a.id}": None for a in QUESTIONS[row["question_id"]].attributes}
        yield _set("no grade known", "X104", row, **none)
    for question, grades in (
        ("patella_medial_cartilage", {"size": 1, "full_thickness_pct": 2}),
        ("patella_medial_bml", {"size": 2, "number": 0, "percent_bml": 0}),
        ("patella_lateral_bml", {"size": 0, "number": 2, "percent_bml": 0}),
        ("femur_medial_central_bml", {"size": 0, "number": 0, "percent_bml": 2}),
    ):
        given = {f"grades__{name}": grade for name, grade in grades.items()}
        yield _set("grades that contradict each other", "X117", knee.rows[question], derive=True, **given)


def _reasoning(knee: _Knee) -> Iterator[Bad]:
    def steps(kind: str, code: str, row: dict[str, Any], said: list[str]) -> Bad:
        return _set(kind, code, row, reasoning=said)

    for row in knee.any(3):
        said = [re.sub(r"grade ([0-9])", lambda m: f"grade {int(m[1]) + 1}", s) for s in row["reasoning"]]
        yield steps("another number in a sentence", "X110", row, said)
    for row in knee.any(3):
        attribute = QUESTIONS[row["question_id"]].attributes[0]
        name, grade = _other_grade(row)
        meanings = attribute.space.meanings
        said = [s.replace(meanings[row["grades"][name]], meanings[grade]) for s in row["reasoning"]]
        if said != row["reasoning"]:
            yield steps("meaning of another grade", "X110", row, said)
    for row in knee.any(2):
        yield steps("last sentence lost", "X110", row, row["reasoning"][:-1])
        yield steps("last sentence twice", "X110", row, [*row["reasoning"], row["reasoning"][-1]])
    for row in knee.some(knee.asking(2), 2):
        yield steps(
            "sentences of two attributes exchanged",
            "X110",
            row,
            [*row["reasoning"][:-2], *row["reasoning"][:-3:-1]],
        )
    lesions = [
        q for q, r in knee.rows.items() if any(v for k, v in r["grades"].items() if k != "tear_location")
    ]
    for row in knee.some(lesions, 2):
        denied = f"Assess the {QUESTIONS[row['question_id']].place}: no sign of a lesion."
        yield steps("lesion denied", "X110", row, [row["reasoning"][0], denied, *row["reasoning"][2:]])
    for what, pattern in (
        ("slices", r"slices (\d+)"),
        ("rows", r"rows (\d+)"),
        ("columns", r"columns (\d+)"),
    ):
        for row in knee.some(knee.boxed, 2):
            said = [
                re.sub(pattern, lambda m: m[0].replace(m[1], str(int(m[1]) + 1)), s) for s in row["reasoning"]
            ]
            yield steps(f"{what} off by one in a sentence", "X109", row, said)
    for row in knee.some(knee.boxed, 2):
        yield steps(
            "other number of slices", "X109", row, [s.replace(" of 16", " of 160") for s in row["reasoning"]]
        )
    for row in knee.some(
        [q for q in knee.boxed if "medial" in QUESTIONS[q].place and "edge" not in QUESTIONS[q].place], 3
    ):
        yield steps(
            "sentence about the other compartment",
            "X109",
            row,
            [s.replace("medial", "lateral") for s in row["reasoning"]],
        )
    for first, second in (("acl", "pcl"), ("patella_medial_bml", "patella_lateral_bml")):
        said = [knee.rows[second]["reasoning"][0], *knee.rows[first]["reasoning"][1:]]
        yield steps("place of another question", "X109", knee.rows[first], said)


def _wordings(knee: _Knee) -> Iterator[Bad]:
    for row in knee.any(2):
        text = row["question"]
        yield _set(
            "wordings exchanged",
            "X108",
            row,
            question__zero_shot=text["instruction"],
            question__instruction=text["zero_shot"],
        )
    for row, other in zip(knee.any(3), knee.any(3), strict=True):
        if row is not other:
            yield _set("wording of another question", "X108", row, question=other["question"])
    for row in knee.any(2):
        text = row["question"]["instruction"]
        yield _set(
            "codes that count from one",
            "X108",
            row,
            question__instruction=text.replace("1 = ", "2 = ").replace("0 = ", "1 = "),
        )
        yield _set(
            "guidance in a zero-shot question",
            "X108",
            row,
            question__zero_shot=row["question"]["instruction"],
        )
        yield _set("wording missing", "X108", row, question__zero_shot=None)
        key = QUESTIONS[row["question_id"]].attributes[0].id
        yield _set(
            "answer without a key",
            "X108",
            row,
            question__zero_shot=row["question"]["zero_shot"].replace(f'"{key}"', '"other"'),
        )
    for row in knee.any(2):
        hinted = row["question"]["zero_shot"] + " Hint: most such knees are healthy."
        changes = [
            {
                "split": split,
                "volume": "all",
                "question": row["question_id"],
                "set": {"question.zero_shot": hinted},
            }
            for split in ("train", "test")
        ]
        yield Bad("hint in the wording of one question", "X108", {"only": ROWS_ONLY, "rows": changes})
    row = knee.rows["acl"]
    yield _set(
        "region wording that asks for a box", "X108", row, question__region=row["question"]["instruction"]
    )


def _names(knee: _Knee) -> Iterator[Bad]:
    for row in knee.any(2):
        yield _set("unknown question", "X103", row, question_id="knee_pain")
        yield _set(
            "category of another lesion",
            "X103",
            row,
            category="bml" if row["category"] != "bml" else "cartilage",
        )
        yield _set("another region", "X103", row, region="acl" if row["region"] != "acl" else "pcl")
        yield _set("id typed by hand", "X105", row, id=row["id"] + "-2")
    for name, value in (
        ("visit", "12"),
        ("visit", "012m"),
        ("side", "both"),
        ("orientation", "XYZ"),
        ("study", "not a name"),
        ("series", "a" * 80),
    ):
        yield _of_volume("field of another form", "X102", **{name: value})
    for name, value in (
        ("study", "file:///knees"),
        ("series", "/home/someone/x"),
        ("study", "https://example.org/x"),
    ):
        yield _of_volume("address in a field", "X502", **{name: value})
    yield _of_volume("patient spelled otherwise", "X105", patient="0" + knee.rows["acl"]["patient"])
    yield _of_volume("volume under another name", "X105", volume_id="1999999-00m-left")
    yield _of_volume("patient that is no number", "X105", patient="DOE")
    for text in ("See /data/scans/knee.nii.gz.", "From s3://bucket/knees."):
        row = knee.rows["pcl"]
        yield _set("address in a sentence", "X502", row, reasoning=[*row["reasoning"][:-1], text])


def _boxes(knee: _Knee) -> Iterator[Bad]:
    for row in knee.some(knee.boxed, 3):
        axis = knee.random.choice("zyx")
        yield _set("box off by one", "X109", row, **{f"box__{axis}1": row["box"][f"{axis}1"] - 1})
    shared = [
        q for q in knee.boxed if sum(knee.rows[o]["region"] == knee.rows[q]["region"] for o in knee.boxed) > 1
    ]
    for row in knee.some(shared, 2):
        yield _set("box of one question moved", "X308", row, derive=True, box__y0=row["box"]["y0"] + 1)
        yield _set("box of one question missing", "X308", row, derive=True, box=None, box_source=None)
    for row in knee.some(knee.boxed, 2):
        yield _set("box past the volume", "X301", row, derive=True, box__x1=49)
        yield _set("box reversed", "X301", row, box__z0=row["box"]["z1"], box__z1=row["box"]["z0"])
        yield _set("box with a negative edge", "X301", row, box__y0=-1)
    for question in ("popliteal_cyst", "ganglion_cyst"):
        yield _set(
            "box of what has none", "X301", knee.rows[question], derive=True, box=knee.rows["acl"]["box"]
        )
    for row in knee.some(knee.boxed, 2):
        other = {
            "question": row["question_id"],
            "configs": ["cropped"],
            "set": {"crop.z0": row["box"]["z0"] + 1},
        }
        yield Bad("crop shifted", "X302", {"only": ["cropped"], "rows": [other]})
    for margin in (0.0, 7.5):
        yield Bad(
            "margin that was not used", "X302", {"only": ["cropped"], "manifest": {"margin_mm": margin}}
        )


def _volumes(knee: _Knee) -> Iterator[Bad]:
    about = knee.rows["acl"]
    flipped = {"L": "R", "R": "L", "S": "I", "I": "S", "A": "P", "P": "A"}
    for n in range(3):
        letters = list(about["orientation"])
        letters[n] = flipped[letters[n]]
        yield _of_volume("orientation the wrong way", "X306", orientation="".join(letters))
    yield Bad("knee of the other side", "X306", {"only": ROWS_ONLY, "rows": [{"turned_side": True}]})
    for factor in (0.001, 25.4):
        yield _of_volume(
            "spacing in another unit",
            "X305",
            **{f"spacing__{a}": about["spacing"][a] * factor for a in "zyx"},
        )
    yield _of_volume("spacing below zero", "X102", spacing__z=-0.7)
    yield _of_volume("shape of nothing", "X102", shape__x=0)
    for n, config in enumerate(("full", "cropped")):
        change = {"configs": [config], "set": {"spacing.y": about["spacing"]["y"] * (1.1 + n)}}
        yield Bad("spacing that is not the header's", "X304", {"only": [config], "rows": [change]})
    yield Bad(
        "shape that is not the voxels'",
        "X303",
        {"only": ["full"], "rows": [{"configs": ["full"], "set": {"shape.y": 47}}]},
    )
    for configs in (ROWS_ONLY, ["cropped"]):
        yield Bad("row twice", "X106", {"only": configs, "rows": [{"configs": configs, "repeat": True}]})
        yield Bad("row lost", "X204", {"only": configs, "rows": [{"configs": configs, "drop": True}]})
    yield Bad(
        "row lost in one config",
        "X107",
        {"only": ["cropped", "annotations"], "rows": [{"configs": ROWS_ONLY, "drop": True}]},
    )
    yield Bad("rows in another order", "X113", {"only": ROWS_ONLY, "rows": [{"swap": True}]})
    for visit in ("72m", "96m"):
        change = {"split": "test", "patient_of": ["train", 0], "visit": visit}
        yield Bad("patient in two splits", "X201", {"only": ROWS_ONLY, "rows": [change]})
    scan = {"study": about["study"], "series": about["series"]}
    for split in ("train", "test"):
        yield Bad(
            "scan of another volume",
            "X115",
            {"only": ROWS_ONLY, "rows": [{"split": split, "volume": -1, "set": scan}]},
        )
    for name in ("shape.z", "spacing.z", "series", "orientation"):
        other = {
            "shape.z": 17,
            "spacing.z": 0.71,
            "series": "10000009",
            "orientation": "RIP" if about["orientation"] != "RIP" else "LIP",
        }[name]
        change = {"configs": ROWS_ONLY, "set": {name: other}}
        yield Bad(
            "volume described otherwise in one config",
            "X107",
            {"only": ["embeddings", "annotations"], "rows": [change]},
        )


def _sources(knee: _Knee) -> Iterator[Bad]:
    boxed = knee.rows["acl"]
    for text in (
        "It is torn, hence grade 7.",
        "Seen on slices 90 to 95.",
        "Seen on slices 90–95.",
        "The posterior cruciate ligament is thick.",
    ):
        yield _set("published text that disagrees", "X116", boxed, published_reasoning=text)
    for reading in (
        {"project": "15", "attribute": "size", "grade": 1},
        {"project": "15", "attribute": "repair", "grade": 9},
        {"project": "/data/x", "attribute": "repair", "grade": 0},
    ):
        yield _set("second reading of something else", "X118", boxed, second_readings=[reading])
    yield _set(
        "published text with an address",
        "X119",
        boxed,
        published_reasoning="See https://example.org/report/7.",
    )
    yield _set("published text of nothing", "X118", boxed, published_reasoning="")
    for name, value in (
        ("image_sha256", "0" * 63),
        ("package", "../x"),
        ("project", "a\nb"),
        ("grades", "C:\\table"),
    ):
        yield _of_volume("provenance of another form", "X118", **{f"provenance__{name}": value})
    yield _set("source of a box that is none", "X118", knee.rows["popliteal_cyst"], box_source="rule")
    for name, value in (
        ("unknown_grades", 5),
        ("second_readings", 99),
        ("contradictions", {"cartilage_depth": 12}),
        ("reasoning", {"derived": 3}),
    ):
        yield Bad(
            "sum that is not the rows'",
            "X207",
            {"only": ROWS_ONLY, "manifest": {f"provenance.{name}": value}},
        )


# --- voxels and embeddings --------------------------------------------------------------------------------------------------------


def _voxels(knee: _Knee) -> Iterator[Bad]:
    def packed(kind: str, code: str, config: str, *patches: dict[str, Any], **more: Any) -> Bad:
        change = {
            "configs": [config],
            "bytes": list(patches),
            **({"question": "acl"} if config == "cropped" else {}),
            **more,
        }
        return Bad(kind, code, {"only": [config], "rows": [change]})

    for at in (20_000, 24_000):
        fault = {
            "only": ["cropped", "full"],
            "rows": [{"configs": ["full"], "bytes": [{"at": at, "xor": 8}]}],
        }
        yield Bad("voxel of the whole volume changed", "X309", fault)
    fault = {
        "only": ["cropped", "full"],
        "rows": [{"configs": ["cropped"], "region": "acl", "bytes": [{"at": 400, "xor": 8}]}],
    }
    yield Bad("voxel of a crop changed", "X309", fault)
    for config in ("cropped", "full"):
        yield packed("name in a header", "X501", config, {"at": 148, "text": "DOE^JANE"})
        yield packed("date in a header", "X501", config, {"at": 228, "text": "20050311"})
        yield packed("volume cut short", "X407", config, {"cut": 5})
        yield packed("spacing of the header", "X304", config, {"at": 80, "add": 0.5})
        yield packed("big-endian voxels", "X408", config, {"swap": True})
    yield packed("crop placed elsewhere", "X304", "cropped", {"at": 292, "add": 5.0})
    for value in (0, 7):
        yield packed("blank volume", "X310", "full", {"fill": value})
    for config in ("cropped", "full"):
        change = {"configs": [config], "question": "acl", "set": {"volume.path": "/mnt/knee.nii"}}
        yield Bad("path in place of bytes", "X409", {"only": [config], "rows": [change]})
    for how in ("intensity", "noise", "shift", "mirror"):
        copy = {"configs": ["full"], "split": "test", "voxels_of": ["train", 0], "altered": how}
        yield Bad("copy of another patient's knee, altered", "X206", {"only": ["full"], "rows": [copy]})
    for turned in (False, True):
        copy = {"configs": ["full"], "split": "test", "voxels_of": ["train", 0], "turned": turned}
        yield Bad("copy of another patient's knee", "X202", {"only": ["full"], "rows": [copy]})


def _embeddings(knee: _Knee) -> Iterator[Bad]:
    def made(kind: str, code: str, **change: Any) -> Bad:
        return Bad(kind, code, {"only": ["embeddings"], "rows": [{"configs": ["embeddings"], **change}]})

    yield made("embedding of zeros", "X112", zeros=True)
    yield made("embedding of another patient", "X202", split="test", embedding_of=["train", 0])
    for name, value in (
        ("tokens", 3),
        ("dtype", "float64"),
        ("slices", [16]),
        ("window", {"low": 5.0, "high": 1.0}),
    ):
        yield made("embedding that was made otherwise", "X112", set={f"embedding.{name}": value})


# --- files and texts --------------------------------------------------------------------------------------------------------------


def _files(knee: _Knee) -> Iterator[Bad]:
    def after(kind: str, code: str, do: str, path: str, **more: Any) -> Bad:
        return Bad(kind, code, {"only": ROWS_ONLY, "after": [{"do": do, "path": path, **more}]})

    for name in (
        "notes.txt",
        ".env",
        ".cache/scans.nii",
        ".github/patients.csv",
        ".huggingface/x",
        "annotations/x.csv",
        ".gitattributes/x",
    ):
        yield after("file that nobody knows", "X403", "write", name, text="x")
    for name in ("3DReasonKnee.py", "load.py"):
        yield after("script at the root", "X410", "write", name, text="print()")
    for name in ("train", "dev", "test"):
        yield after("folder named like a split", "X411", "write", f"{name}/x.txt", text="x")
    for name in ("README.md", "schema/full.schema.json", "annotations/test-00000-of-00001.parquet"):
        yield after("file missing", "X402", "remove", name)
        yield after("file changed", "X404", "flip", name)
    for name in ("schema/answers.schema.json", "schema/annotations.schema.json"):
        replaced = {"do": "replace", "path": name, "old": '"type": "object"', "new": '"type": "array"'}
        yield Bad("schema changed and sealed again", "X404", {"only": ROWS_ONLY, "files": [replaced]})
    extra = {"do": "write", "path": "schema/more.json", "text": "{}", "listed": True}
    yield Bad("text that has no place in a release", "X413", {"only": ROWS_ONLY, "files": [extra]})


def _replaced(kind: str, code: str, path: str, old: str, new: str, only: list[str] | None = None) -> Bad:
    change = {"do": "replace", "path": path, "old": old, "new": new}
    open_ = {"manifest": {"restricted": False}} if only is None else {}  # annotations go out to everyone
    return Bad(kind, code, {"only": ROWS_ONLY if only is None else only, "files": [change], **open_})


def _card(knee: _Knee) -> Iterator[Bad]:
    images = ["full"]
    for old, new in (("may not be", "may be"), ("accepted OAI's data use terms", "heard of OAI")):
        yield _replaced("gate that says something else", "X504", "README.md", old, new, images)
    yield _replaced("licence of images", "X504", "README.md", "license: other", "license: mit", images)
    yield _replaced("licence of annotations", "X504", "README.md", "license: cc-by-4.0", "license: cc0-1.0")
    for old, new in (
        ("- moaks", "- ct"),
        ("pretty_name: 3DReasonKnee", "pretty_name: 4DReasonKnee"),
        ("- en\n", "- de\n"),
        ("n<1K", "1K<n<10K"),
    ):
        yield _replaced("card of another dataset", "X608", "README.md", old, new)
    yield _replaced(
        "key that changes the page", "X608", "README.md", "pretty_name:", "viewer: false\npretty_name:"
    )
    for old, new in (
        ("num_examples: ", "num_examples: 1"),
        ("download_size: ", "download_size: 2"),
        ("dataset_size: ", "dataset_size: 3"),
    ):
        yield _replaced("counts that are not the manifest's", "X604", "README.md", old, new)
    for old, new in (
        ("annotations/train-*.parquet", "annotations/test-*.parquet"),
        ("split: test", "split: exam"),
        ("  - split: train", "  drop_labels: true\n  - split: train"),
    ):
        code = "X601" if "drop_labels" in new else "X602"
        yield _replaced("files of another split", code, "README.md", old, new)
    yield _replaced("feature of another type", "X603", "README.md", "dtype: int8", "dtype: int64")
    for text in (
        "See /home/someone/release.",
        "See https://files.example.org/x.",
        "Token hf_abcdefghijklmnopqrstuvwxyz.",
        "On file://server/x.",
    ):
        yield _replaced(
            "address or token in the card", "X502", "README.md", "## Questions", f"{text}\n\n## Questions"
        )


def _croissant(knee: _Knee) -> Iterator[Bad]:
    name = "croissant.json"
    for old, new in (
        ('"version": "1.0.0"', '"version": "9.0.0"'),
        ("licenses/by/4.0/", "licenses/by/3.0/"),
        ("annotations/*.parquet", "full/*.parquet"),
    ):
        yield _replaced("Croissant of other files", "X605", name, old, new)
    for key in ("contentUrl", "url"):
        old = f'"{key}": "https://huggingface.co/datasets/rajpurkarlab/3DReasonKnee"'
        yield _replaced(
            "Croissant that points elsewhere",
            "X605",
            name,
            old,
            f'"{key}": "https://huggingface.co/rajpurkarlab/x"',
        )
    for old, new in (
        ("cr:Int8", "cr:Int32"),
        ('"column": "side"', '"column": "visit"'),
        ('"jsonPath": "z0"', '"jsonPath": "z1"'),
        ("annotations/series", "annotations/serie"),
    ):
        yield _replaced("Croissant of other columns", "X606", name, old, new)
    yield _replaced(
        "address in Croissant", "X502", name, '"name": "rajpurkarlab"', '"name": "http://example.org"'
    )


def _manifest(knee: _Knee) -> Iterator[Bad]:
    def says(kind: str, code: str, only: list[str] = ROWS_ONLY, **to: Any) -> Bad:
        return Bad(kind, code, {"only": only, "manifest": {k.replace("__", "."): v for k, v in to.items()}})

    for name in ("volumes", "patients", "quintuples"):
        yield says("count that is not the rows'", "X204", **{f"{name}__train": 7})
    yield says("phantoms that are told to be people", "X204", synthetic=False)
    yield says("volume that was left out and is there", "X204", quarantined={knee.volume: "R005"})
    yield says("images that are told to be open", "X503", ["full"], restricted=False)
    yield says("questions outside the set", "X111", questions="paper62")
    for wording in ("zero_shot", "instruction"):
        yield says("wordings that were not promised", "X108", wording=wording)
    for version in ("0.0.9", "9.9.9"):
        yield says("made by another version", "X609", code_version=version)
    yield says(
        "file outside the release", "X401", files__evil="0" * 64, **{"shards__0__path": "../x.parquet"}
    )


def _parquet(knee: _Knee) -> Iterator[Bad]:
    shard = "annotations/test-00000-of-00001.parquet"

    def changed(kind: str, code: str, do: str, path: str = shard, **more: Any) -> Bad:
        only = [path.split("/")[0]]
        canonical = {"canonical": True} if code == "X418" else {}
        return Bad(kind, code, {"only": only, "files": [{"do": do, "path": path, **more}], **canonical})

    yield changed("bytes between pages and footer", "X414", "hide")
    yield changed("bytes hidden in a dictionary", "X418", "stow")
    yield changed("statistics of another patient", "X415", "misstate")
    full = "full/test-00000-of-00001.parquet"
    for old, new in (("synovitis_effusion", "synovitis_effusiox"), ("tibia_subspinous", "tibia_subspinouz")):
        yield changed("nested statistics", "X415", "misstate", full, old=old, new=new)
    yield changed("step of a hundred megabytes", "X417", "bomb", column="reasoning", size=100_000_000)
    yield changed("name that fills the memory", "X417", "bomb", column="study", size=2_000_000)
    rows = [{"configs": ROWS_ONLY, "derive": True}]
    yield Bad("pages without checksums", "X416", {"only": ROWS_ONLY, "rows": rows, "unchecked": True})
    yield Bad("column renamed", "X101", {"only": ROWS_ONLY, "rows": rows, "columns": ["side", "knee"]})
    yield Bad(
        "words in the footer", "X502", {"only": ROWS_ONLY, "rows": rows, "metadata": {"made_in": "/home/x"}}
    )
    together = [{"configs": ["full"], "derive": True}]
    yield Bad("volumes in one row group", "X114", {"only": ["full"], "rows": together, "together": True})
