"""What a config says about each volume, small enough to hold for a whole release, and the checks that need
more than one row group: the same in every config, each patient in one split, no voxels twice, as many as the
manifest says."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reasonknee.errors import DataError, shown
from reasonknee.layout import CONFIGS, Manifest, patient_id
from reasonknee.layout.splits import is_synthetic, overlap
from reasonknee.questions import ATTRIBUTES, in_sections
from reasonknee.validation.copies import alike
from reasonknee.validation.findings import Findings
from reasonknee.validation.geometry import Boxes, check_outliers, check_sides, region_boxes, site_name
from reasonknee.validation.reading import Batch
from reasonknee.validation.rows import TABLE, volume_rows
from reasonknee.validation.voxels import Seen, same_place

# The place of a question of the table among the rows of a volume in `cropped`.
_RANK_IN_SECTIONS = np.argsort([TABLE.index(q) for q in in_sections(TABLE)])
_MOST_GRADES = max(len(a.space.grades) for q in TABLE for a in q.attributes)


@dataclass
class VolumeFacts:
    """One volume in one config."""

    config: str
    split: str
    path: str
    place: str
    volume_id: str
    about: dict[str, Any]
    boxes: Boxes
    checksums: dict[int, int]  # question number -> checksum of its grades, box and sources
    prints: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.uint64)
    )  # of its slices, or of its embedding
    picture: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float16))
    embedding: tuple[str, int] | None = None  # dtype and width
    affine: np.ndarray | None = None
    crops: dict[int, int] = field(default_factory=dict)  # site -> checksum of its voxels

    @property
    def patient(self) -> str:
        try:
            return patient_id(self.about["patient"])
        except DataError:
            return str(self.about["patient"])  # named by the checks of rows

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.about["shape.z"], self.about["shape.y"], self.about["shape.x"])

    @property
    def spacing(self) -> tuple[float, float, float]:
        return (self.about["spacing.z"], self.about["spacing.y"], self.about["spacing.x"])


def gather(
    batch: Batch, sound: np.ndarray, boxed: np.ndarray, seen: dict[int, Seen], findings: Findings
) -> list[VolumeFacts]:
    """The volumes of a batch."""
    facts: dict[str, VolumeFacts] = {}
    ids = batch.table["volume_id"].to_pylist()
    members: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(batch.row.tolist()):
        members[ids[row]].append(i)
    packed = np.concatenate([batch.grades, batch.box], axis=1)
    told = batch.flat.select(["box_source", "published_reasoning", "second_readings"]).to_pylist()
    for row, about in volume_rows(batch):
        name, place = about["volume_id"], batch.place_of_row(row)
        if name in facts:
            wrong = [k for k in about if about[k] != facts[name].about[k]]
            findings.add("X107", place, f"{', '.join(wrong)} differ from those in another row of the volume")
            continue
        mine = np.array(members[name], dtype=np.int64)
        boxes = region_boxes(batch, mine[sound[mine]], boxed, findings)
        check_sides(place, about["side"], about["orientation"], boxes, findings)
        known = mine[sound[mine]]
        _order(batch, mine, known, findings)
        sums = {
            int(batch.question[i]): zlib.crc32(packed[i].tobytes(), zlib.crc32(repr(told[i]).encode()))
            for i in known.tolist()
        }
        facts[name] = VolumeFacts(batch.config, batch.split, batch.path, place, name, about, boxes, sums)
    placed: dict[str, list[tuple[int, np.ndarray]]] = defaultdict(list)
    for row, what in seen.items():
        of = facts[ids[row]]
        of.prints = np.union1d(of.prints, np.array(sorted(what.prints), np.uint64))
        for site in [s for s, sum_ in what.crops.items() if of.crops.get(s, sum_) != sum_]:
            told = f"another crop of {site_name(site)} has other voxels"
            findings.add("X309", batch.place_of_row(row), told)
        of.crops = {**what.crops, **of.crops}
        of.picture = of.picture if what.picture is None else what.picture
        if what.affine is not None:
            placed[ids[row]].append((row, what.affine))
    for name, affines in placed.items():
        facts[name].affine = usual = np.median(
            [affine for _, affine in affines], axis=0
        )  # so that the odd one out is named, not all others
        for row in [row for row, affine in affines if not same_place(usual, affine, facts[name].shape)]:
            findings.add(
                "X304",
                batch.place_of_row(row),
                "the header places the crop elsewhere than other crops of the volume",
            )
    if "embedding" in batch.table.column_names:
        for row, cell in enumerate(batch.table["embedding"]):
            of = facts[ids[row]]
            digest = hashlib.blake2b(
                cell["bytes"].as_buffer(), digest_size=8
            ).digest()  # one equals another by chance in no release
            of.prints = np.frombuffer(digest, np.uint64)
            of.embedding = (cell["dtype"].as_py(), cell["width"].as_py())
    if list(facts) != sorted(facts):
        findings.add("X113", batch.place_of_row(0), "the volumes here are not in order")
    return list(facts.values())


def _order(batch: Batch, mine: np.ndarray, known: np.ndarray, findings: Findings) -> None:
    """Questions of one volume: each once, one after the other, in the table's order; in `cropped`,
    section by section of the knee."""
    asked = batch.question[known]
    for n in np.flatnonzero(
        np.isin(asked, [q for q, c in zip(*np.unique(asked, return_counts=True), strict=True) if c > 1])
    )[1:].tolist():
        if asked[n] in asked[:n]:
            findings.add("X106", batch.place(int(known[n])), "it stands in this config already")
    rank = _RANK_IN_SECTIONS[asked] if batch.config == "cropped" else asked
    for rows, wrong in ((known, np.diff(rank) < 0), (mine, np.diff(mine) > 1)):
        for n in np.flatnonzero(wrong)[:1]:
            findings.add("X113", batch.place(int(rows[n + 1])), "it does not come after the row before it")


def histogram(batch: Batch, sound: np.ndarray) -> np.ndarray:
    """questions x attributes x grades: how often."""
    counts = np.zeros((len(TABLE), len(ATTRIBUTES), _MOST_GRADES), np.int64)
    for column in range(len(ATTRIBUTES)):
        grade = batch.grades[:, column]
        there = sound & (grade >= 0) & (grade < _MOST_GRADES)
        np.add.at(counts[:, column], (batch.question[there], grade[there]), 1)
    return counts


# --- the whole release --------------------------------------------------------------------------------------


def check_release(
    manifest: Manifest,
    facts: list[VolumeFacts],
    histograms: dict[tuple[str, str], np.ndarray],
    broken: set[str],
    findings: Findings,
) -> None:
    """`broken` names configs of which something could not be read: what they lack says nothing."""
    by_config: dict[str, dict[str, VolumeFacts]] = {c: {} for c in manifest.configs}
    for each in facts:
        if each.volume_id in by_config[each.config]:
            _twice(by_config[each.config][each.volume_id], each, findings)
        else:
            by_config[each.config][each.volume_id] = each
    whole = [c for c in by_config if c not in broken]
    _across_configs({c: by_config[c] for c in whole}, findings)
    _patients(facts, findings)
    named = _voxels_twice(by_config.get("full") or by_config.get("cropped") or {}, findings)
    _alike(list((by_config.get("full") or {}).values()), named, findings)
    _embeddings(by_config.get("embeddings") or {}, findings)
    for config in whole[:1]:
        _sizes(manifest, by_config[config].values(), findings)
        _scans_twice(by_config[config].values(), findings)
    described = next((c for c in reversed(CONFIGS) if c in by_config), "")
    _shift(
        {s: h for (c, s), h in histograms.items() if c == described},
        by_config.get(described, {}).values(),
        findings,
    )
    sampled = by_config.get(described, {}).values()
    check_outliers(
        [
            (
                v.place,
                v.about["side"],
                v.about["orientation"],
                np.array(v.shape),
                np.array(v.spacing),
                v.boxes,
            )
            for v in sampled
        ],
        findings,
    )


def _twice(first: VolumeFacts, second: VolumeFacts, findings: Findings) -> None:
    if first.checksums.keys() & second.checksums.keys() or not first.checksums:
        findings.add("X106", second.place, f"the volume stands in {first.path} already")
    else:
        findings.add(
            "X113",
            second.place,
            f"the volume is spread over {first.path} and {second.path}, or its rows are not together",
        )


def _across_configs(by_config: dict[str, dict[str, VolumeFacts]], findings: Findings) -> None:
    """Each config tells the same story. The first one that has a volume is compared with the others."""
    names = sorted({v for volumes in by_config.values() for v in volumes})
    for name in names:
        there = [volumes[name] for volumes in by_config.values() if name in volumes]
        first = there[0]
        absent = [c for c, volumes in by_config.items() if name not in volumes]
        if absent:
            findings.add("X107", first.place, f"the volume is not in {', '.join(absent)}")
        _crops_of(by_config, name, findings)
        for other in there[1:]:
            for wrong in _differences(first, other):
                findings.add("X107", other.place, f"{wrong} not as in {first.path}")


def _crops_of(by_config: dict[str, dict[str, VolumeFacts]], name: str, findings: Findings) -> None:
    full, cropped = (by_config.get(c, {}).get(name) for c in ("full", "cropped"))
    if full and cropped:
        wrong = [s for s, sum_ in cropped.crops.items() if full.crops.get(s, sum_) != sum_]
        if wrong:
            findings.add(
                "X309",
                cropped.place,
                f"regions {shown(', '.join(site_name(s) for s in wrong))} differ from {full.place}",
            )


def _differences(first: VolumeFacts, other: VolumeFacts) -> list[str]:
    wrong = [k for k in first.about if first.about[k] != other.about[k]]
    wrong += ["split"] if first.split != other.split else []
    only = first.checksums.keys() ^ other.checksums.keys()
    wrong += [f"questions {shown(', '.join(TABLE[q].id for q in sorted(only)))}"] if only else []
    changed = [
        q for q in first.checksums.keys() & other.checksums.keys() if first.checksums[q] != other.checksums[q]
    ]
    wrong += (
        [f"grades, boxes or sources of {shown(', '.join(TABLE[q].id for q in sorted(changed)))}"]
        if changed
        else []
    )
    if (
        first.affine is not None
        and other.affine is not None
        and not same_place(first.affine, other.affine, first.shape)
    ):
        wrong.append("the place in the world")
    return [f"{', '.join(wrong)}:"] if wrong else []


def _patients(facts: list[VolumeFacts], findings: Findings) -> None:
    by_split: dict[str, set[str]] = defaultdict(set)
    example: dict[tuple[str, str], VolumeFacts] = {}
    for each in facts:
        by_split[each.split].add(each.patient)
        example.setdefault((each.patient, each.split), each)
    legal = {
        split: [p for p in ids if p.isascii() and p.isdigit() and len(p) == 7]
        for split, ids in by_split.items()
    }
    for patient, splits in overlap(legal).items():
        places = "; ".join(example[patient, s].place for s in splits)
        findings.add("X201", places, f"patient {patient} is in {', '.join(splits)}")


_ALIKE = 0.1  # of the slices of a volume are another one's: no two knees have any


def _voxels_twice(
    volumes: dict[str, VolumeFacts], findings: Findings, what: str = "voxels"
) -> set[frozenset[str]]:
    """Pairs of volumes that share prints, from a sorted list of all prints, by their ids."""
    named = set()
    here = list(volumes.values())
    every = np.concatenate([np.zeros(0, np.uint64), *(v.prints for v in here)])
    owner = np.repeat(np.arange(len(here)), [len(v.prints) for v in here])
    order = np.argsort(every, kind="stable")
    every, owner = every[order], owner[order]
    shared: Counter[tuple[int, int]] = Counter()
    for n in np.flatnonzero(
        every[1:] == every[:-1]
    ).tolist():  # with many copies, each is named with the one before it
        shared[int(owner[n]), int(owner[n + 1])] += 1
    for (a, b), count in sorted(shared.items()):
        first, second = here[a], here[b]
        fewest = min(len(first.prints), len(second.prints))
        if count >= max(1, _ALIKE * fewest) and (count > 1 or fewest == 1):
            named.add(frozenset((first.volume_id, second.volume_id)))
            some = "" if count == fewest else f" {count} of {fewest}"
            findings.add(
                "X203" if first.split == second.split else "X202",
                second.place,
                f"its {what} are those of {first.place}{some and ',' + some}",
            )
    return named


def _alike(volumes: list[VolumeFacts], named: set[frozenset[str]], findings: Findings) -> None:
    """Pictures that are too like one of another patient; copies that were named already are left out."""
    here = [v for v in volumes if len(v.picture)]
    if len(here) < 2:
        return
    for pair in alike(np.stack([v.picture for v in here]), [v.patient for v in here]):
        first, second = here[pair.first], here[pair.second]
        if frozenset((first.volume_id, second.volume_id)) not in named:
            told = f"its picture correlates with that of {first.place} by {pair.correlation:.2f}"
            findings.add("X206", second.place, told)


def _embeddings(volumes: dict[str, VolumeFacts], findings: Findings) -> None:
    """One kind for all, and none twice."""
    kinds = Counter(v.embedding for v in volumes.values() if v.embedding)
    for each in [v for v in volumes.values() if v.embedding and v.embedding != kinds.most_common(1)[0][0]]:
        findings.add(
            "X112", each.place, f"{shown(each.embedding)} where most have {shown(kinds.most_common(1)[0][0])}"
        )
    _voxels_twice(volumes, findings, "numbers")


def _scans_twice(volumes: Iterable[VolumeFacts], findings: Findings) -> None:
    first: dict[tuple[str, str], VolumeFacts] = {}
    for each in volumes:
        other = first.setdefault((each.about["study"], each.about["series"]), each)
        if other is not each:
            findings.add(
                "X115",
                each.place,
                f"{shown(each.about['study'], 40)}/{shown(each.about['series'], 40)}, as {other.place}",
            )


def _sizes(manifest: Manifest, volumes: Iterable[VolumeFacts], findings: Findings) -> None:
    here = list(volumes)
    wrong = [v for v in here if is_synthetic(v.patient) != manifest.synthetic]
    if wrong and (manifest.synthetic or len(wrong) == len(here)):
        findings.add(
            "X204", wrong[0].place, f"the manifest says synthetic: {str(manifest.synthetic).lower()}"
        )
    for each in [v for v in here if v.volume_id in manifest.quarantined]:
        findings.add("X204", each.place, "the manifest says that it was left out")
    for split in dict.fromkeys([*manifest.volumes, *(v.split for v in here)]):
        mine = [v for v in here if v.split == split]
        counts = {
            "volumes": len(mine),
            "patients": len({v.patient for v in mine}),
            "quintuples": sum(len(v.checksums) for v in mine),
        }
        for what, count in counts.items():
            if getattr(manifest, what).get(split, 0) != count:
                findings.add(
                    "X204",
                    f"{split}, {what}",
                    f"{count} where the manifest says {getattr(manifest, what).get(split, 0)}",
                )


_SHIFT = 0.25  # of the grades would have to change for the two splits to be alike
_FEWEST_PATIENTS = 8


def _shift(histograms: dict[str, np.ndarray], volumes: Iterable[VolumeFacts], findings: Findings) -> None:
    """Total variation between a split's grades and train's, for each attribute of each question, beyond
    what few patients explain."""
    patients: dict[str, set[str]] = defaultdict(set)
    for each in volumes:
        patients[each.split].add(each.patient)
    for split, counts in histograms.items():
        fewest = min(len(patients[split]), len(patients["train"]))
        if split == "train" or "train" not in histograms or fewest < _FEWEST_PATIENTS:
            continue
        ours, theirs = (
            h / np.maximum(h.sum(axis=2, keepdims=True), 1) for h in (counts, histograms["train"])
        )
        distance = np.abs(ours - theirs).sum(axis=2) / 2
        asked = (counts.sum(axis=2) > 0) & (histograms["train"].sum(axis=2) > 0)
        for q, a in np.argwhere(asked & (distance > _SHIFT + 1.5 / np.sqrt(fewest))).tolist():
            findings.add(
                "X205",
                f"{split}, {TABLE[q].id} {ATTRIBUTES[a]}",
                f"{distance[q, a]:.0%} of the grades differ from train's",
            )
