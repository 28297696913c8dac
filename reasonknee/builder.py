"""The `datasets` builder: quintuples straight from a cohort folder, with no release in between.

    builder = ReasonKnee(config_name="cropped", data_dir="cohort")
    builder.download_and_prepare(); builder.as_dataset("train")         # or
    builder.as_streaming_dataset("train")

Works as a class on datasets 3.6 and later, and on 3.6 also as the loading script `3DReasonKnee.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets

from reasonknee.cohort import Cohort
from reasonknee.cohort.annotations import FILE_NAME as ANNOTATIONS
from reasonknee.errors import UsageError
from reasonknee.layout import PER_VOLUME, SPLITS
from reasonknee.layout.records import CONFIG_DOCS, DEFAULT_CONFIG, features
from reasonknee.questions import DEFAULT_SET
from reasonknee.release import Options
from reasonknee.release.rows import Member, members, read_sources, rows
from reasonknee.version import VERSION


@dataclass
class ReasonKneeConfig(datasets.BuilderConfig):
    """`questions`, `margin_mm`, `wording` and `accept` are those of `reasonknee build`."""

    questions: str = DEFAULT_SET
    margin_mm: float | str = 0.0
    wording: str = "all"
    accept: tuple[str, ...] = ()  # volumes that are taken though they look like no scan

    @property
    def options(self) -> Options:
        return Options(self.questions, self.margin_mm, self.wording)

    def create_config_id(
        self, config_kwargs: dict[str, Any], custom_features: datasets.Features | None = None
    ) -> str:
        """The name of the cache, which changes with the cohort: else corrected annotations would be answered
        with the old rows. Images are not looked at; give `cache_dir` a new folder after replacing one."""
        base: str = super().create_config_id(config_kwargs, custom_features)
        if not self.data_dir:
            return base
        root = Path(self.data_dir).resolve()
        files = [p for p in (root / ANNOTATIONS, root / "embeddings.h5") if p.is_file()]
        stamp = [str(root), *((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files)]
        return f"{base}-{hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]}"


class ReasonKnee(datasets.GeneratorBasedBuilder):
    VERSION = datasets.Version(VERSION)
    BUILDER_CONFIG_CLASS = ReasonKneeConfig
    BUILDER_CONFIGS: ClassVar[list[ReasonKneeConfig]] = [
        ReasonKneeConfig(name=name, version=datasets.Version(VERSION), description=doc)
        for name, doc in CONFIG_DOCS.items()
    ]
    DEFAULT_CONFIG_NAME = DEFAULT_CONFIG
    DEFAULT_WRITER_BATCH_SIZE = 4  # rows carry volumes: the default of 1,000 would hold gigabytes

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(
            description="3DReasonKnee: " + CONFIG_DOCS[self.config.name],
            features=features(self.config.name),
            homepage="https://arxiv.org/abs/2510.20967",
            license="annotations: cc-by-4.0; images: OAI data use terms",
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        if not self.config.data_dir:
            raise UsageError("C005", "no cohort folder given", "pass data_dir=<cohort folder>")
        _ = self.config.options  # a wrong one is told before any work
        cohort = Cohort(Path(self.config.data_dir).resolve())
        entries = cohort.entries()
        volumes = members(cohort, entries, [self.config.name], accept=self.config.accept)
        return [
            datasets.SplitGenerator(
                name=split,
                gen_kwargs={  # the list is the shard axis of num_proc and of streaming workers
                    "volumes": [v for v in volumes if v.entry.split == split],
                    "root": str(cohort.root),
                },
            )
            for split in SPLITS
            if any(v.entry.split == split for v in volumes)
        ]

    def _generate_examples(self, volumes: list[Member], root: str) -> Iterator[tuple[str, dict[str, Any]]]:
        cohort, name = Cohort(root), self.config.name
        key = "volume_id" if name in PER_VOLUME else "id"
        for volume in volumes:
            for row in rows(read_sources(cohort, volume, [name]), name, self.config.options):
                yield row[key], row
