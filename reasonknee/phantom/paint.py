"""Painting: tissue upon tissue from the skin inwards, then the labels of the mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reasonknee.phantom.anatomy import (
    ACL_FEMUR,
    ACL_RADIUS,
    ACL_TIBIA,
    MENISCI,
    MENISCUS_INNER,
    SEGMENT_ANGLE,
    SEGMENT_X,
    TENDON_HALF,
    bones_in,
    fibula,
    meniscus_shape,
    patellar_tendon,
    patellar_tendon_x,
    pcl,
)
from reasonknee.phantom.geometry import Array, Frame, Index, Point, blend, coverage, ellipsoid, ramp, rod
from reasonknee.phantom.grades import SEGMENTS
from reasonknee.phantom.plan import Plan
from reasonknee.phantom.tissue import (
    AIR,
    CARTILAGE,
    CORTEX,
    FASCIA,
    FAT,
    FILM,
    FLUID,
    LIGAMENT,
    MARROW,
    MENISCUS,
    OEDEMA,
    SKIN,
    SOFT_TISSUE,
    TENDON,
    Blob,
)
from reasonknee.questions.regions import LABELS

GROWTH_PLATES_Y = (-38.0, 17.0)
HOFFA_CORE: Point = (0.0, -5.0, -17.0)
# What a grade means in mm or as a share
HOFFA_SIGNAL_MM = (  # reach of the bright signal from the intercondylar part of the pad
    (0.0, 7.5),
    (7.5, 12.0),
    (12.0, 17.5),
    (17.5, 26.0),
)
HOFFA_SIGNAL = ((0.3, 0.8),) * 4  # how much of the fat's signal it replaces
BURSA_MM = ((1.4, 3.8), (3.8, 7.4), (7.4, 11.5), (11.5, 16.5))  # depth of the suprapatellar bursa
RETROPATELLAR_MM = ((0.7, 1.2), (1.2, 1.8), (1.8, 2.5), (2.5, 3.4))
TENDON_SIGNAL = ((0.0, 0.4), (0.3, 1.0))
TORN_SIGNAL = (
    (0.0, 0.6),
    (0.45, 1.0),
)  # of a ligament's middle, from fibres to fluid; mucoid degeneration is bright
ROOT_CLEFT_MM = ((-1.5, -0.1), (0.5, 1.4))
REMNANT = {6: 0.6, 7: 0.42, 8: 0.22}  # height left of a macerated meniscus


class Cavity(NamedTuple):
    """The joint cavity in front of the femur as a sheet over (z, y): its middle in x, half its depth, and
    the least half depth of its label."""

    middle: Array
    half: Array
    core: Array


def cavity_of(frame: Frame, plan: Plan, weights: Sequence[Array]) -> Cavity:
    grade = plan.grade("effusion_synovitis")
    behind = blend(weights[1], blend(weights[0], plan.front, 0), 1)
    z, y = frame.on_sheet(behind)
    top = -60 - plan.anatomy.bursa - 1.5 * grade  # the bursa reaches higher as it fills
    bursa = np.clip(1 - ((y - (top - 44) / 2) / (top + 44) * 2) ** 2, 0, 1)
    wide = 17 + (4 + 2 * grade) * bursa
    full, least = (plan.grade.extent("effusion_synovitis", mm) for mm in (BURSA_MM, RETROPATELLAR_MM))
    depth = least + (full - least) * bursa * np.sqrt(np.clip(1 - (z / wide) ** 2, 0, 1))
    middle = behind - 0.2 - 2.5 * ramp(y, -45, -52) - depth / 2
    # a label one voxel thick stays in one piece only if each step of the sheet from row to row is bridged
    down, across = np.abs(np.diff(middle, axis=0)), np.abs(np.diff(middle, axis=1))
    step = np.full_like(middle, frame.spacing[2])
    for view, rise in ((step[1:], down), (step[:-1], down), (step[:, 1:], across), (step[:, :-1], across)):
        np.maximum(view, rise, out=view)
    domain = (np.abs(z) < wide) & (y > top) & (y < -9)
    return Cavity(middle, np.where(domain, depth / 2, -9), np.where(domain, 0.55 * step, -9))


class Canvas:
    """A slab of slices while it is painted."""

    def __init__(self, frame: Frame, plan: Plan, weights: Sequence[Array], cavity: Cavity) -> None:
        self.frame, self.plan, self.weights, self.cavity, self.grade = (
            frame,
            plan,
            weights,
            cavity,
            plan.grade,
        )
        shape = (len(frame.rough[0]), len(frame.rough[1]), len(frame.rough[2]))
        self.image, self.mask = np.empty(shape, np.float32), np.zeros(shape, np.uint8)
        self.bones = bones_in(frame, plan.anatomy, plan.spurs)
        self.thin: list[
            tuple[str, Index, Array, Array]
        ] = []  # label, block, where it lies for certain, where it lies unless bone does
        self._limb()
        self._front()
        self._joint()
        self._bone()
        for blob in plan.findings:
            self.blob(blob)
        self._labels()

    def put(self, index: Index, alpha: Array, value: Array | float) -> None:
        part = self.image[index]
        step = value - part
        step *= alpha
        part += step

    def blob(self, blob: Blob, within: Array | None = None, sheath: float = 0.0) -> None:
        spans = [(c - r, c + r) for c, r in zip(blob.centre, blob.radii, strict=True)]
        index, z, y, x = self.frame.cut(*spans, margin=4.0)
        distance, edge = ellipsoid(z, y, x, blob.centre, blob.radii), max(blob.edge, self.frame.edge)
        inside = coverage(distance, edge)
        if within is not None:
            inside *= within[index]
        if sheath:
            self.put(index, coverage(distance - sheath, edge), FAT - 12)
        self.put(index, inside, blob.value)

    def planned(self, name: str, index: Index) -> Array | None:
        """A map of the plan on a block of this slab; None where it is empty."""
        if name not in self.plan.maps:
            return None
        wz, wy, wx = (w[s] for w, s in zip(self.weights, index, strict=True))
        coarse = blend(wz, self.plan.maps[name], 0)
        return blend(wx, blend(wy, coarse, 1), 2) if coarse.any() else None

    def _limb(self) -> None:
        f, edge = self.frame, self.frame.edge
        y = f.rough[1]
        front = (-51 + 8.5 * np.tanh((y - 12) / 24))[:, None]  # the shin lies behind the kneecap
        back, half = (61 - 3 * np.exp(-((y / 25) ** 2)))[:, None], (50 - 3 * np.tanh(y / 30))[:, None]
        u = ((f.x - (front + back) / 2) / ((back - front) / 2)) ** 2
        v = (f.z / half[None]) ** 2
        depth = (1 - np.sqrt(np.sqrt(u**2 + v * v + 1.2 * u * v))) * 52  # mm below the skin
        deep = coverage(self.plan.anatomy.fat - depth, edge)
        self.image[:] = AIR
        self.image += (SKIN - AIR) * coverage(-depth, edge)
        self.image += (FAT - SKIN) * coverage(1.3 - depth, edge)
        self.image += (2.4 * (FASCIA - FAT)) * (deep - deep * deep)  # the fascia, where the deep part begins
        for tissue in SOFT_TISSUE:  # each in its sheath of fat
            self.blob(tissue, within=deep, sheath=1.6)

    def _front(self) -> None:
        """Quadriceps tendon, Hoffa's fat pad, and the fluid of the joint cavity."""
        f, edge = self.frame, self.frame.edge
        index, z, y, x = f.cut((-16, 16), (-85, -48), (-56, -34))
        tendon = np.maximum(np.abs(x + 47.0 - 0.12 * (y + 52)) - 3.2, np.maximum(np.abs(z) - 15, y + 49))
        self.put(
            index, coverage(tendon, edge), TENDON + 25 * ramp(np.abs(np.sin(2.2 * (x - 0.12 * y))), 0.6, 1)
        )
        index, z, y, x = f.cut((-28, 28), (-24, 26), (-50, -10))
        self.pad_index = index
        self.pad = np.maximum(
            ellipsoid(z, y, x, (0.0, 0.0, -29.0), (22.0, 24.0, 24.0)),
            x - self.cavity.middle[index[0], index[1], None],
        )
        self.pad = np.maximum(self.pad, patellar_tendon_x(y, self.plan.anatomy) + TENDON_HALF - x)
        septa = ramp(
            np.abs(
                np.sin(0.4 * x + 1.7 * np.sin(0.23 * y + 0.2 * z)) + 0.6 * np.sin(0.5 * y - 0.2 * x + 0.3 * z)
            ),
            0.25,
            0.0,
        )
        self.put(index, coverage(self.pad, edge), FAT + 4 + 45 * septa)
        reach = self.grade.extent("hoffa_synovitis", HOFFA_SIGNAL_MM)
        if reach > 1:
            bright = self.grade.extent("hoffa_synovitis", HOFFA_SIGNAL, number=1)
            ragged = 2.5 * np.sin(0.5 * x + 0.3 * z) * np.sin(0.45 * y)
            signal = ellipsoid(z, y, x, HOFFA_CORE, (reach, 0.8 * reach, reach)) + ragged
            self.put(index, coverage(self.pad, edge) * coverage(signal, 5.0) * bright, 360.0)
        index, z, y, x = f.cut((-30, 30), (-72, -6), (-56, -10))
        cavity = [part[index[0], index[1], None] for part in self.cavity[:2]]
        self.put(index, coverage(np.abs(x - cavity[0]) - cavity[1], edge), FLUID)

    def _joint(self) -> None:
        """What lies between the bones: films of fluid, menisci, ligaments, and the patellar tendon in
        front."""
        f, edge, g = self.frame, self.frame.edge, self.grade
        effusion = g("effusion_synovitis")
        for bone in self.bones:
            film = np.where(bone.cartilage > 0.4, bone.distance - bone.cartilage - 0.35, 9)
            if bone.name == "femur":  # the recess behind the condyles fills as the capsule distends
                _, y, x = bone.at
                film = film - 0.9 * effusion * ramp(x, 18, 26) * ramp(y, -6, -14)
            self.put(bone.block, coverage(film, edge), FILM + 25 * effusion)
        for side in MENISCI:
            self._meniscus(side)
        index, z, y, x = f.cut((-15, 15), (-20, 38), (-54, -24))
        spindle = np.exp(-(((y + 6) / 9) ** 2)) * g.extent("patellar_tendon", TENDON_SIGNAL)
        tendon = patellar_tendon(z, y, x, TENDON_HALF + 1.6 * spindle, self.plan.anatomy)
        self.put(
            index,
            coverage(tendon, edge),
            TENDON + 260 * spindle * coverage(tendon + 1.6, 2.0) * ramp(np.abs(z), 11, 6),
        )
        label = patellar_tendon(z, y, x, max(TENDON_HALF, 0.6 * f.spacing[2]), self.plan.anatomy) < 0
        self.thin.append(("patellar_tendon", index, label, label))
        index, z, y, x = f.cut((-8, 14), (-26, 18), (-8, 34))
        distance, t = pcl(z, y, x)
        self._ligament("pcl", index, distance, t, np.full_like(distance, LIGAMENT - 12))
        index, z, y, x = f.cut((-16, 8), (-38, 6), (-14, 22))
        distance, t = rod(z, y, x, ACL_FEMUR, ACL_TIBIA)
        streaks = 10 + 60 * g.chance("acl", 3)
        fibres = LIGAMENT - 30 + streaks + streaks * ramp(np.sin(1.5 * x + y + 0.8 * z), 0.2, 1)
        self._ligament(
            "acl",
            index,
            distance - ACL_RADIUS * self.plan.anatomy.girth,
            t,
            np.full_like(fibres, CORTEX + 8) if g("acl", "repair") else fibres,
        )

    def _ligament(self, name: str, index: Index, distance: Array, t: Array, value: Array) -> None:
        self.put(index, 0.5 * coverage(distance - 1.2, self.frame.edge), 260.0)  # its synovial sheath
        # frayed stumps and fluid where the middle was; a ligament that holds may be bright inside
        signal = self.grade.extent(name, TORN_SIGNAL, "complete_tear")
        middle, half = 0.35 + 0.3 * self.grade.chance(name, 1), 0.1 + 0.12 * self.grade.chance(name, 2)
        value = value + signal * coverage(np.abs(t - middle) - half, 0.12) * (FLUID - 120 - value)
        if self.grade(name, "complete_tear"):
            value = value + 60 * coverage(np.abs(t - middle) - half - 0.15, 0.1)
        self.put(index, coverage(distance, self.frame.edge), value)
        inside = distance < 0
        self.thin.append((name, index, inside, inside))

    def _meniscus(self, side: str) -> None:
        f, edge = self.frame, self.frame.edge
        centre_z, radius_z, centre_x, radius_x, half_arc = MENISCI[side]
        index, z, y, x = f.cut(
            (centre_z - radius_z - 9, centre_z + radius_z + 9),
            (-17, 4),
            (centre_x - radius_x - 9, centre_x + radius_x + 3),
        )
        footprint, height, wedge, angle, rho = meniscus_shape(z, y, x, side, self.grade, self.plan.anatomy)
        layer, covered = 1.1 * f.spacing[1], (footprint < 0) & (height >= 0)
        self.thin.append((f"{side}_meniscus", index, covered & (height < layer), covered & (height < wedge)))
        value = np.full(height.shape, MENISCUS, np.float32)
        lines: list[Array] = []  # distance to a tear, in mm
        radius = 0.5 * (radius_z + radius_x)
        for segment, middle, middle_x in zip(SEGMENTS, SEGMENT_ANGLE, SEGMENT_X, strict=True):
            kind = self.grade(f"{side}_meniscus_{segment}_morphology")
            here = coverage(np.abs(x - middle_x) - 7.5, 3.0)
            if kind == 1:
                value += (
                    here * 230 * np.exp(-(((height / wedge - 0.5) / 0.22) ** 2) - ((rho - 0.78) / 0.13) ** 2)
                )
            off = 60 * (1 - here)
            if kind in (2, 5):
                lines.append(np.maximum(np.abs(angle - middle) * radius * rho, off))
            if kind in (3, 5):
                lines.append(np.maximum(np.abs(height - 0.45 * wedge), off))
            if kind in (4, 5):
                lines.append(np.maximum(np.abs(rho - 0.76) * radius, off))
            if kind in REMNANT:
                left = REMNANT[kind]
                wedge = wedge * (1 - here * (1 - left))
                footprint = np.maximum(footprint, (MENISCUS_INNER + 0.45 * (1 - left) - rho) * radius - off)
                value += (
                    here * (1 - left) * 140 * ramp(np.sin(1.1 * x + 1.3 * z) * np.sin(1.5 * y), -0.2, 0.8)
                )
        cleft = self.grade.extent(f"{side}_meniscus_root_tear", ROOT_CLEFT_MM)
        if cleft > -0.5:  # a normal root may hold a streak
            lines.append(np.where(angle > 0, np.abs(angle - (half_arc - 0.35)) * radius * rho - cleft, 60))
        for line in lines:
            value += coverage(line - 0.7, edge) * (FLUID - 120 - value)
        body = np.maximum(np.maximum(footprint, -height), height - wedge)
        self.put(index, coverage(body, edge), value)

    def _bone(self) -> None:
        edge = self.frame.edge
        for bone in self.bones:
            loss = self.planned(f"loss_{bone.name}", bone.block)
            thickness = bone.cartilage if loss is None else bone.cartilage * (1 - loss)
            if loss is not None:  # fluid fills what is lost
                gone = coverage(bone.distance - bone.cartilage - 0.3, edge) * ramp(loss, 0.1, 0.4)
                self.put(bone.block, gone, FLUID)
            layer = np.where(thickness > 0.25, bone.distance - thickness, 9)
            self.put(bone.block, coverage(layer, edge), CARTILAGE - 45 * ramp(bone.distance, 1.2, 0.2))
        index, z, y, x = self.frame.cut((-40, -22), (8, 70), (12, 34))
        self._marrow(index, y, x, fibula(z, y, x))
        for bone in self.bones:
            for centre, radii in self.plan.spurs[
                bone.name
            ]:  # a spur wears a cap of cartilage, under which its cortex shows
                cap = (radii[0] + 1.2, radii[1] + 1.2, radii[2] + 1.2)
                self.blob(Blob(centre, cap, CARTILAGE - 40))
            self._marrow(bone.block, bone.at[1], bone.at[2], bone.distance)
            for name, value in (("bml", OEDEMA), ("cyst", FLUID - 60)):
                share = self.planned(name, bone.block)
                if share is not None:
                    if name == "cyst":
                        share = coverage(0.5 - share, max(0.3, edge / 3))  # the map's slope is a third per mm
                    self.put(bone.block, share * coverage(bone.distance + 0.8, edge), value)
        if self.grade("acl", "repair"):
            self._tunnels()

    def _tunnels(self) -> None:
        for start, end in ((ACL_TIBIA, (6.0, 34.0, -22.0)), (ACL_FEMUR, (-22.0, -48.0, 4.0))):
            spans = [(min(p, q) - 6, max(p, q) + 6) for p, q in zip(start, end, strict=True)]
            index, z, y, x = self.frame.cut(*spans)
            distance, _ = rod(z, y, x, start, end)
            wide = 2.0 + 1.5 * self.grade.chance("acl", 0)
            self.put(index, coverage(distance - wide - 1.5, self.frame.edge), CORTEX + 20)
            self.put(
                index, coverage(distance - wide, self.frame.edge), 90.0 + 110 * self.grade.chance("acl", 1)
            )

    def _marrow(self, index: Index, y: Array, x: Array, distance: Array) -> None:
        shell = (
            0.8 + 1.8 * ramp(y, -45, -70) + 1.6 * ramp(y, 25, 50)
        )  # the shaft's cortex is thick, the subchondral plate thin
        red = 40 * ramp(y, -42, -60) + 18 * ramp(y, 24, 45)
        scar = sum(np.exp(-(((y - p - 2.2 * np.sin(0.13 * x)) / 0.9) ** 2)) for p in GROWTH_PLATES_Y)
        self.put(index, coverage(distance, self.frame.edge), CORTEX)
        self.put(index, coverage(distance + shell, self.frame.edge), MARROW + red - 16 * scar)

    def _labels(self) -> None:
        """Thin structures are labelled last and at least a voxel thick, so that each stays in one piece
        at any resolution."""
        f, mask = self.frame, self.mask
        for bone in self.bones:
            inside = bone.distance < bone.cartilage
            if bone.name == "patella":
                inside &= bone.at[2] < self.cavity.middle[bone.block[0], bone.block[1], None]
            np.copyto(mask[bone.block], bone.label, where=inside)
        index, _, _, x = f.cut((-30, 30), (-72, -6), (-60, -8))
        middle, half, core = (p[index[0], index[1], None] for p in self.cavity)
        part, away = mask[index], np.abs(x - middle)
        part[(away < core) | ((away < half) & (part == 0))] = LABELS["joint_cavity"]
        for name, index, certain, free in self.thin:
            part = mask[index]
            kneecap = (part == LABELS["patella_medial"]) | (part == LABELS["patella_lateral"])
            part[(certain & ~kneecap) | (free & (part == 0))] = LABELS[name]
        part = mask[self.pad_index]
        part[(self.pad < 0) & (part == 0)] = LABELS["hoffa_fat_pad"]
