"""The data card: front matter that `load_dataset` reads, tables generated from the question table, and a
plain account of the data's limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reasonknee.layout import Manifest
from reasonknee.layout.records import (
    CONFIG_DOCS,
    DEFAULT_CONFIG,
    Field,
    Repeated,
    Scalar,
    Struct,
    fields,
    yaml_features,
)
from reasonknee.layout.terms import LISTED, NAME, OPEN, REPO, RESTRICTED
from reasonknee.questions import CATEGORIES, QUESTIONS
from reasonknee.questions.contradictions import RULES
from reasonknee.questions.lesions import GradeSpace

DATASHEET = Path(__file__).with_name("datasheet.md")
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))


def card_text(manifest: Manifest) -> str:
    """The README.md of a release."""
    import yaml

    front = yaml.safe_dump(front_matter(manifest), sort_keys=False, allow_unicode=True, width=150)
    parts = [
        f"---\n{front}---\n",
        f"# {_title(manifest)} {manifest.release_version}\n",
        "3D grounded reasoning on knee MRI: volume, diagnostic question, 3D box, reasoning steps and "
        "structured MOAKS grades "
        "([arXiv 2510.20967](https://arxiv.org/abs/2510.20967)).\n",
        "```python\nfrom datasets import load_dataset\n",
        f'rows = load_dataset("{REPO}", "{manifest.configs[0]}", split="train", streaming=True)\n```\n',
        "## This release\n",
        sizes_table(manifest),
        f"Question set `{manifest.questions}`, crop margin {_margin(manifest)}, wording "
        f"`{manifest.wording}`. "
        "`manifest.json` lists every file with its sha256; `schema/` holds the JSON Schemas of rows and "
        "answers.\n",
        "## Where it comes from\n",
        provenance_table(manifest),
        "## Configs\n",
        *(f"### `{c}`: {CONFIG_DOCS[c]}\n\n{fields_table(c)}" for c in manifest.configs),
        "## Questions\n",
        questions_table(),
        "## Grade spaces\n",
        grade_spaces_table(),
        DATASHEET.read_text(encoding="utf-8"),
    ]
    return "\n".join(parts)


def _margin(manifest: Manifest) -> str:
    if isinstance(manifest.margin_mm, str):
        return f"`{manifest.margin_mm}` (what each question's lesion needs)"
    return f"{manifest.margin_mm:g} mm"


def _title(manifest: Manifest) -> str:
    return f"{NAME} (synthetic knees)" if manifest.synthetic else NAME


def front_matter(manifest: Manifest) -> dict[str, Any]:
    """The YAML that the Hub and `datasets` read; the first config is the default one."""
    total = sum(manifest.quintuples.values())
    return {
        "pretty_name": _title(manifest),
        **(RESTRICTED if manifest.restricted else OPEN),
        **LISTED,
        "size_categories": [next((name for limit, name in _SIZES if total < limit), "1M<n<10M")],
        "configs": [
            {
                "config_name": config,
                **({"default": True} if config == manifest.configs[0] else {}),
                "data_files": [
                    {"split": s, "path": f"{config}/{s}-*.parquet"}
                    for s in manifest.volumes
                    if manifest.of(config, s)
                ],
            }
            for config in manifest.configs
        ],
        "dataset_info": [_info(manifest, config) for config in manifest.configs],
    }


def _info(manifest: Manifest, config: str) -> dict[str, Any]:
    by_split = {s: manifest.of(config, s) for s in manifest.volumes}
    splits = [
        {
            "name": split,
            "num_bytes": sum(s.arrow_bytes for s in shards),
            "num_examples": sum(s.rows for s in shards),
        }
        for split, shards in by_split.items()
        if shards
    ]
    return {
        "config_name": config,
        "features": yaml_features(config),
        "splits": splits,
        "download_size": sum(s.bytes for s in manifest.of(config)),
        "dataset_size": sum(s["num_bytes"] for s in splits),
    }


# --- tables -------------------------------------------------------------------------------------------------


def _table(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    def row(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"

    return "\n".join([row(header), row(["---"] * len(header)), *(row(line) for line in lines)]) + "\n"


def sizes_table(manifest: Manifest) -> str:
    splits = list(manifest.volumes)
    lines: list[list[object]] = [
        [f"{what}", *(f"{getattr(manifest, what)[s]:,}" for s in splits)]
        for what in ("patients", "volumes", "quintuples")
    ]
    lines += [
        [f"`{c}`, MB", *(f"{sum(x.bytes for x in manifest.of(c, s)) / 1e6:,.1f}" for s in splits)]
        for c in manifest.configs
    ]
    return _table(["", *splits], lines)


def provenance_table(manifest: Manifest) -> str:
    """The manifest's sums, for people."""
    told = manifest.provenance
    names = {
        "grades": "grades: volumes by table",
        "projects": "grades: volumes by reading project",
        "images": "images: volumes by OAI's package",
        "boxes": "boxes: quintuples by source",
        "reasoning": "reasoning: quintuples by source",
        "contradictions": "grades that contradict each other, by rule",
    }
    lines: list[tuple[str, str]] = [
        (title, ", ".join(f"{what} {n:,}" for what, n in told[name].items()) or "none")
        for name, title in names.items()
    ]
    lines += [
        ("grades that are asked for and unknown", f"{told['unknown_grades']:,}"),
        ("quintuples with a second reading", f"{told['second_readings']:,}"),
    ]
    return _table(["", ""], lines)


def _type_name(field: Field) -> str:
    match field.type:
        case Scalar(name):
            text: str = name
        case Struct(of):
            text = "struct of " + ", ".join(f.name for f in of)
        case Repeated(Scalar(name)):
            text = f"list of {name}"
        case Repeated(Struct(of)):
            named = any(f.name == "question_id" for f in of)
            text = "list of " + ("quintuples" if named else "structs of " + ", ".join(f.name for f in of))
        case _:
            text = "NIfTI"
    return text + (", or null" if field.nullable else "")


def fields_table(config: str) -> str:
    return _table(["field", "type", "what"], [(f"`{f.name}`", _type_name(f), f.doc) for f in fields(config)])


def configs_table() -> str:
    return _table(
        ["config", "rows"],
        [
            (f"`{name}`" + (" (default)" if name == DEFAULT_CONFIG else ""), doc)
            for name, doc in CONFIG_DOCS.items()
        ],
    )


def questions_table() -> str:
    """All questions, folded by category so that the card stays readable."""
    parts = []
    for category in CATEGORIES:
        asked = [q for q in QUESTIONS.values() if q.category == category]
        lines = [
            (
                f"`{q.id}`",
                q.upstream_id,
                q.region.title,
                ", ".join(f"`{a.id}`: `{a.space.id}`" for a in q.attributes),
            )
            for q in asked
        ]
        table = _table(["id", "upstream", "region", "attributes: grade space"], lines)
        parts.append(
            f"<details><summary>{category.title}: {len(asked)} questions</summary>\n\n{table}\n</details>\n"
        )
    return "\n".join(parts)


def evidence_table() -> str:
    """The margin that each lesion needs, by lesion: a question on a region without a box has no crop."""
    needed = {q.lesion.id: q.lesion for q in QUESTIONS.values() if q.region.labels}
    return _table(
        ["lesion", "", "millimetres along slices, rows, columns"],
        [(f"`{id_}`", x.title, ", ".join(f"{mm:g}" for mm in x.evidence_mm)) for id_, x in needed.items()],
    )


def contradictions_table() -> str:
    return _table(["rule", "what is wrong"], [(f"`{rule}`", words) for rule, words in RULES.items()])


def grade_spaces_table() -> str:
    spaces: dict[str, GradeSpace] = {a.space.id: a.space for q in QUESTIONS.values() for a in q.attributes}
    return _table(
        ["grade space", "scale", "grades"],
        [
            (f"`{s.id}`", s.scale, "; ".join(f"{g} = {m}" for g, m in enumerate(s.meanings)))
            for s in spaces.values()
        ],
    )
