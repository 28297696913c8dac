"""A hundred and fifty bad releases and more: not one gets through. The suite runs a sample, `make slow` all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_releases import Bad, bad_releases
from spoil import spoil

from reasonknee.validation.report import as_text
from reasonknee.validation.run import validate_release

SAMPLE = 24  # a few seconds


def missed(bad: list[Bad], clean: Path, folder: Path) -> list[str]:
    """Those that do not raise their code, with what they raised instead."""
    told = []
    for n, each in enumerate(bad):
        spoil(clean, folder / str(n), each.fault)
        findings = validate_release(folder / str(n), canonical=each.fault.get("canonical", False))
        if each.code not in findings.groups:
            told.append(f"{each.kind} ({each.code}): {as_text(findings, 'raised')}")
    return told


def test_there_are_enough_of_them(few: Path) -> None:
    bad = bad_releases(few)
    assert len(bad) >= 150
    assert len({each.kind for each in bad}) >= 50


def test_a_sample_of_bad_releases_is_refused(few: Path, tmp_path: Path) -> None:
    bad = bad_releases(few)
    assert missed(bad[:: len(bad) // SAMPLE], few, tmp_path) == []


@pytest.mark.slow
def test_every_bad_release_is_refused(few: Path, tmp_path: Path) -> None:
    assert missed(bad_releases(few), few, tmp_path) == []
