"""What a check is and what it finds: the table of all checks, each with a stable code, and a collector
that stays small however much is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from reasonknee.errors import ReasonKneeError

Level = Literal["error", "warning"]
Theme = Literal["schema", "splits", "geometry", "integrity", "privacy", "card"]


@dataclass(frozen=True)
class Check:
    code: str
    level: Level
    theme: Theme
    title: str
    hint: str


def _table(theme: Theme, *lines: tuple[str, str, str]) -> Iterable[Check]:
    """`code` with a trailing `w` is a warning: it is printed, and does not fail the release."""
    for code, title, hint in lines:
        yield Check(code.rstrip("w"), "warning" if code.endswith("w") else "error", theme, title, hint)


_ALL = (
    *_table(
        "schema",
        (
            "X101",
            "a shard's columns are not the fields of its config",
            "write it with records.arrow_schema(config)",
        ),
        (
            "X102",
            "a field is null, or has not its form, where its config's JSON Schema wants a value",
            "mend the row at its source and build again",
        ),
        (
            "X103",
            "a row's question is unknown, or its category or region is not the question's",
            "`reasonknee questions` lists all questions",
        ),
        (
            "X104",
            "grades are not the question's: outside their grade space, missing, or set though not asked",
            "schema/answers.schema.json has them",
        ),
        (
            "X105",
            "ids disagree: volume_id is patient-visit-side, id is volume_id-question_id",
            "derive ids, never type them",
        ),
        ("X106", "a question or a volume stands twice in a config", "keep one"),
        (
            "X107",
            "what is one thing differs: between configs, or between rows of one volume",
            "build all configs from the same annotations",
        ),
        (
            "X108",
            "a question's wording is not about its own question: region, lesion, attributes or grade codes",
            "derive it with reasonknee.questions.prompts",
        ),
        (
            "X109",
            "the reasoning states another region, or other slices, rows or columns, than the row holds",
            "derive it with reasonknee.questions.reasoning",
        ),
        (
            "X110",
            "the reasoning states other grades than the row holds",
            "derive it with reasonknee.questions.reasoning",
        ),
        (
            "X111",
            "a question is not in the question set that the manifest names",
            "drop the row or name the other set",
        ),
        ("X112", "an embedding is not tokens x width finite numbers of its dtype", "embed the volume again"),
        (
            "X113",
            "rows are not in the order of volume, then (in a row group) question, or a volume is spread over "
            "shards",
            "sort them: readers rely on it",
        ),
        (
            "X114",
            "a row group is not one volume (in `cropped`, one section of its knee)",
            "write a row group for each: readers rely on it",
        ),
        ("X115", "two volumes name the same study and series", "name each with the folders of its own scan"),
        (
            "X116w",
            "the published reasoning states something else than the row holds",
            "compare it with the grades and the box: one of them is wrong",
        ),
        ("X117w", "grades of one knee contradict each other", "look at the reading: both cannot be true"),
        (
            "X118",
            "what is told of a row's sources has not its form: provenance, box_source, second_readings",
            "mend it in the annotations and build again",
        ),
        (
            "X119w",
            "the published reasoning holds a path or a URL, which stands there as it was published",
            "look whether it names a person or a machine",
        ),
        (
            "X701",
            "a question of SGMRI-VQA has not the form that its level, task and kind of answer want",
            "docs/sgmri.md shows it; `reasonknee sgmri construct` writes it",
        ),
        (
            "X702",
            "an answer of SGMRI-VQA is not what its own record says: its text, choices or findings",
            "construct the questions again",
        ),
        (
            "X703",
            "the id of a question of SGMRI-VQA is not made of its anatomy, split, level, place and volume",
            "derive ids, never type them",
        ),
        (
            "X704",
            "an answer or a reasoning of SGMRI-VQA states other boxes than the findings have",
            "construct the questions again",
        ),
    ),
    *_table(
        "splits",
        (
            "X201",
            "a patient is in more than one split",
            "both knees and all visits of a patient belong together",
        ),
        (
            "X202",
            "the same voxels or embedding stand under another id in another split, as they are or turned",
            "remove one of the two: it leaks",
        ),
        (
            "X203w",
            "the same voxels or embedding stand under another id in the same split, as they are or turned",
            "remove one of the two",
        ),
        (
            "X204",
            "volumes, patients or questions of a split are not as many as the manifest says",
            "build again: rows were lost or added",
        ),
        (
            "X205w",
            "grades are distributed otherwise in this split than in train",
            "stratify the splits, or say so in the card",
        ),
        (
            "X206w",
            "a volume looks like a copy of another patient's: other intensity, noise, shifted or mirrored",
            "look at both: `reasonknee look`; if they are one knee, remove one",
        ),
        (
            "X207",
            "the manifest's sums of provenance are not those of the rows",
            "build again: rows or sums were changed",
        ),
    ),
    *_table(
        "geometry",
        (
            "X301",
            "a box is empty, reversed or leaves its volume",
            "half-open voxels of the full volume, z y x",
        ),
        (
            "X302",
            "a crop is not its box plus the manifest's margin, or is there without a box",
            "crop again with the margin that the manifest names",
        ),
        (
            "X303",
            "voxels do not have the shape that the row says",
            "the volume or its crop belongs to another row",
        ),
        (
            "X304",
            "spacing, orientation or place in the NIfTI header are not the row's",
            "write the volume with its own affine",
        ),
        (
            "X305w",
            "spacing or field of view is implausible for a knee: 0.1 to 10 mm and 40 to 400 mm are expected",
            "check the unit",
        ),
        (
            "X306",
            "boxes lie the wrong way round for this side and orientation: medial and lateral, front and "
            "back, above and below",
            "a side, an orientation or the boxes are wrong",
        ),
        (
            "X307w",
            "a region's box is far from where, or how large, it is in the rest of the release",
            "look at it: `reasonknee look`",
        ),
        ("X308", "questions on one region of one volume have different boxes", "a region has one box"),
        (
            "X309",
            "a crop's voxels are not those of the full volume there, or of another crop",
            "crop again from the volume that `full` holds",
        ),
        (
            "X310",
            "a volume is blank: all its voxels have one value",
            "replace the image, or leave the volume out",
        ),
        (
            "X311",
            "a volume does not look like a scan: labels, next to nothing, or constant in most slices",
            "build it from the scan; a scan that looks so is taken by `--accept` with its volume id",
        ),
        (
            "X710",
            "a frame box is empty, leaves its frames, or lies on another frame than its question",
            "half-open pixels of the stored image, frames from 0",
        ),
    ),
    *_table(
        "integrity",
        (
            "X401",
            "the manifest is missing, unreadable or not as its JSON Schema wants it",
            "`reasonknee migrate` an older layout; else download or build the release again",
        ),
        ("X402", "a file that the manifest lists is missing", "download it again"),
        ("X403", "a file is not in the manifest", "remove it"),
        ("X404", "a file's size or sha256 is not the manifest's", "download it again"),
        ("X405", "a shard does not have as many rows as the manifest says", "build again"),
        ("X406", "a shard is not readable Parquet, or a page's checksum is wrong", "download it again"),
        (
            "X407",
            "the bytes of a volume are not a whole, well-formed NIfTI file",
            "build the row again from its image",
        ),
        (
            "X408",
            "voxels from byte 352 are not the C-contiguous little-endian (z, y, x) array",
            "write rows with nifti_bytes()",
        ),
        (
            "X409",
            "a row points to a path instead of holding bytes",
            "embed the bytes: a path would be read or fetched on a reader's machine",
        ),
        (
            "X410",
            "there is a script at the root of the release",
            "remove it: `datasets` refuses, or would run it",
        ),
        ("X411", "a folder is named like a split", "rename it: `datasets` takes it for one"),
        (
            "X412",
            "the shards of a split are not numbered 0 to n-1 of n, or listed under another config or split",
            "build again",
        ),
        (
            "X413",
            "a text that a release has is not in the manifest, or one that has no place in it is",
            "card, Croissant and the schemas, and nothing else",
        ),
        (
            "X414",
            "a shard holds bytes that belong to no column",
            "write it again: a reader never sees them, but they travel",
        ),
        (
            "X415",
            "statistics in a shard's footer are not those of its rows",
            "write it again: readers select rows by them",
        ),
        (
            "X416",
            "a page of a shard has no checksum",
            "write it with write_page_checksum=True, so that damage is noticed",
        ),
        (
            "X417",
            "a row group or a footer becomes far larger than it is once it is unpacked",
            "do not open it: it was made to fill a reader's memory",
        ),
        (
            "X419",
            "the index does not say what the shards hold",
            "build again: a reader plans by it, and would pass over rows",
        ),
        (
            "X418",
            "a shard's rows, written again, are not its bytes (looked for with --canonical)",
            "write it again: something is hidden in it, or another program wrote it",
        ),
    ),
    *_table(
        "privacy",
        (
            "X501",
            "a NIfTI header holds more than where its voxels lie, which may name a person or a date",
            "write it with nifti_bytes(), which leaves all else blank",
        ),
        (
            "X502",
            "a path of a machine, a URL or a token stands in a row, in a shard's metadata or in a text",
            "remove it at its source and build again",
        ),
        (
            "X503",
            "image bytes or embeddings are in a release that is marked public",
            "build `--configs annotations`, or mark it restricted",
        ),
        (
            "X504",
            "the card's licence, or the gating text of a restricted release, is not the one it must have",
            "generate the card again",
        ),
    ),
    *_table(
        "card",
        ("X601", "README.md has no front matter that parses as YAML", "generate the card again"),
        (
            "X602",
            "the card's configs are not the release's: names, order, or the files of a split",
            "generate the card again",
        ),
        ("X603", "the card's features are not the fields of the config", "generate the card again"),
        ("X604", "the card's counts of rows and bytes are not the manifest's", "generate the card again"),
        ("X605", "croissant.json is missing, not valid Croissant, or about other files", "generate it again"),
        (
            "X606",
            "croissant.json does not list the configs and fields of the release: columns and types",
            "generate it again",
        ),
        (
            "X607w",
            "a JSON Schema in the release is not this version's",
            "validate with the version that the manifest names",
        ),
        (
            "X608",
            "the card's front matter holds something that does not follow from the manifest",
            "generate the card again",
        ),
        (
            "X609",
            "the manifest's code_version is not the one that the schemas of the release name",
            "name the version that made it, or build it again",
        ),
    ),
)
CHECKS: dict[str, Check] = {c.code: c for c in _ALL}
MOST = 20  # examples kept of each code; the count goes on


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, and what.

    What the input gate refused has a hint of its own: one code may have many causes.
    """

    place: str
    detail: str
    hint: str = ""


@dataclass
class Group:
    """All findings of one code: how many, and the first of them."""

    code: str
    level: Level
    title: str
    hint: str
    count: int = 0
    examples: list[Finding] = field(default_factory=list)

    @property
    def hints(self) -> set[str]:
        return {f.hint or self.hint for f in self.examples}

    def add(self, findings: Iterable[Finding], count: int) -> None:
        self.count += count
        self.examples += list(findings)[: MOST - len(self.examples)]


class Findings:
    """Findings by code."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}

    def __bool__(self) -> bool:
        return bool(self.groups)

    def add(self, code: str, place: str, detail: str) -> None:
        check = CHECKS[code]
        self._group(code, check.level, check.title, check.hint).add([Finding(place, detail)], 1)

    def add_error(
        self,
        error: ReasonKneeError,
        place: str,
        level: Level = "error",
        title: str = "refused by the input gate",
    ) -> None:
        """What the input gate refused, under the gate's own code; the gate's place where ours does not say
        it."""
        detail = error.message if error.place in place else error.told
        self._group(error.code, level, title, error.hint).add([Finding(place, detail, error.hint)], 1)

    def merge(self, other: Findings) -> None:
        for code, group in other.groups.items():
            self._group(code, group.level, group.title, group.hint).add(group.examples, group.count)

    def _group(self, code: str, level: Level, title: str, hint: str) -> Group:
        return self.groups.setdefault(code, Group(code, level, title, hint))

    def count(self, level: Level) -> int:
        return sum(g.count for g in self.groups.values() if g.level == level)

    def ordered(self) -> list[Group]:
        """Errors first, then by code."""
        return sorted(self.groups.values(), key=lambda g: (g.level, g.code))

    def as_dict(self) -> dict[str, Any]:
        return {
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "findings": [asdict(g) for g in self.ordered()],
        }


def checks_table() -> str:
    """All checks as a Markdown table: the one in docs/validation.md is this."""
    lines = ["| code | level | theme | what is wrong | what to do |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {c.code} | {c.level} | {c.theme} | {c.title} | {c.hint} |" for c in CHECKS.values()]
    return "\n".join(lines) + "\n"
