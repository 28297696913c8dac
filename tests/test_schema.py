"""The committed schemas are the table's, and refuse what the table does not allow."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from reasonknee import schema
from reasonknee.layout import CONFIGS, Manifest
from reasonknee.layout.records import arrow_schema, features, yaml_features
from reasonknee.questions import QUESTIONS, Question

ALL = list(QUESTIONS.values())
BOX = {"z0": 0, "z1": 1, "y0": 0, "y1": 1, "x0": 0, "x1": 1}


def test_no_drift() -> None:
    derived = {name: schema.text(s) for name, s in schema.derive().items()}
    assert {p.name: p.read_text() for p in schema.files()} == derived, "run `make gen`"


@pytest.mark.parametrize("name", ["answers", "manifest", *CONFIGS])
def test_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(schema.load(name))
    assert schema.load(name)["$schema"].endswith("2020-12/schema")


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_answers(q: Question) -> None:
    valid = schema.validator("answers", q.id).is_valid
    for grades in itertools.product(*(a.space.grades for a in q.attributes)):
        answer = dict(zip([a.id for a in q.attributes], grades, strict=True))
        assert valid({"box": BOX, "grades": answer})
        assert valid({"box": None, "grades": answer})
    for a in q.attributes:
        for wrong in (-1, len(a.space.grades), 1.5, "1", None, True):
            assert not valid({"box": None, "grades": {**answer, a.id: wrong}})
        assert not valid({"box": None, "grades": {k: v for k, v in answer.items() if k != a.id}})
    assert not valid({"box": None, "grades": {**answer, "severity": 1}})
    assert not valid({"grades": answer})
    assert not valid({"box": {**BOX, "z1": 1.5}, "grades": answer})
    assert not valid({"box": {k: v for k, v in BOX.items() if k != "x1"}, "grades": answer})
    assert not valid({"box": None, "grades": answer, "note": "x"})


@pytest.mark.parametrize("config", CONFIGS)
def test_one_definition_of_the_fields(config: str) -> None:
    assert features(config).arrow_schema.remove_metadata() == arrow_schema(config)
    assert features(config)._to_yaml_list() == yaml_features(config)
    assert set(schema.load(config)["properties"]) == set(features(config))


@pytest.mark.parametrize("config", CONFIGS)
def test_rows_of_a_release_are_valid_and_a_wrong_grade_is_not(
    config: str, release: Path, manifest: Manifest
) -> None:
    rows = [
        row
        for shard in manifest.of(config)[:2]
        for row in pq.read_table(release / shard.path).slice(0, 3).to_pylist()
    ]
    check = schema.validator(config)
    for row in rows:
        assert not [e.message for e in check.iter_errors(row)]
    row = rows[0]
    quintuple = row["quintuples"][0] if "quintuples" in row else row
    for name, wrong in (
        ("size", 4),
        ("morphology", 1),
        ("category", "cartilage"),
        ("question_id", "no_such"),
    ):
        where = quintuple["grades"] if name in quintuple["grades"] else quintuple
        kept, where[name] = where[name], wrong
        assert not check.is_valid(row), (name, wrong)
        where[name] = kept
    assert check.is_valid(row)
    first, *others = [a.id for a in QUESTIONS[quintuple["question_id"]].attributes]
    quintuple["grades"] |= dict.fromkeys(others)
    assert check.is_valid(row), "a grade that nobody knows is null"
    quintuple["grades"][first] = None
    assert not check.is_valid(row), "a question without any grade"
    assert not check.is_valid({**row, "surprise": 1})


def test_manifest(release: Path) -> None:
    manifest = json.loads((release / "manifest.json").read_text())
    assert not [e.message for e in schema.validator("manifest").iter_errors(manifest)]
    manifest["shards"][0]["sha256"] = "0"
    assert not schema.validator("manifest").is_valid(manifest)
