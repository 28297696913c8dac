"""`make gen`: writes everything that is derived and committed, namely `schema/`, the digests of the protocol
and the tables in README.md and docs/. With `kit`, the conformance kit as well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from reasonknee import codes, schema
from reasonknee.answers import EXAMPLES
from reasonknee.release import card
from reasonknee.scoring import golden, protocol
from reasonknee.validation import findings

BLOCKS: dict[str, Callable[[], str]] = {
    "configs": card.configs_table,
    "questions": card.questions_table,
    "grade-spaces": card.grade_spaces_table,
    "datasheet": lambda: card.DATASHEET.read_text(encoding="utf-8"),
    "checks": findings.checks_table,
    "conventions": lambda: conventions_table(),
    "evidence": card.evidence_table,
    "contradictions": card.contradictions_table,
    "codes": codes.table,
}


def conventions_table() -> str:
    rows = (f"| `{name}` | {words} | `{example}` |" for name, (words, example) in EXAMPLES.items())
    return "\n".join(
        ["| `--convention` | the numbers are | an example, the same box in each |", "|---|---|---|", *rows]
    )


def with_blocks(text: str) -> str:
    """The text with everything between `<!-- gen:NAME -->` and `<!-- /gen -->` made anew."""
    for name, block in BLOCKS.items():
        start, end = f"<!-- gen:{name} -->\n", "<!-- /gen -->"
        before, found, rest = text.partition(start)
        if found:
            _, closed, after = rest.partition(end)
            if not closed:
                raise ValueError(f"the block {name} has no {end}")
            text = before + start + "\n" + block() + "\n" + end + after
    return text


def main(root: Path) -> None:
    for path in schema.write():
        print(path.relative_to(root))
    protocol.write_record()
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        path.write_text(with_blocks(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.relative_to(root))


if __name__ == "__main__":
    if sys.argv[2:] == ["kit"]:
        golden.write_kit()
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
