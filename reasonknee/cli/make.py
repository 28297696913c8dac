"""Make: from sources to a release."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from reasonknee.cli.app import MAKE, Accept, Bar, Dask, Workers, app, part_of, shape_of
from reasonknee.errors import StorageError, counted, reason, remedy


@app.command(rich_help_panel=MAKE)
def phantom(
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    patients: Annotated[
        int, typer.Option(help="How many patients; each has one or two knees and one to three visits.")
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    shape: Annotated[str, typer.Option(help="Voxels as Z,Y,X; 160,384,384 is OAI's.")] = "160,384,384",
    layout: Annotated[
        str,
        typer.Option(help="How scans lie: nifti, or as a download: flat, oai, bare, data, results or tar."),
    ] = "nifti",
) -> None:
    """Make a synthetic cohort: images, masks, tables, embeddings and annotations."""
    from reasonknee.phantom.cohort import write_cohort

    bar = Bar()
    volumes = write_cohort(out, patients, seed, shape_of(shape), bar, layout)
    bar.close()
    after = f"build {quote(str(out))} release" if layout == "nifti" else f"plan {quote(str(out))}"
    typer.echo(
        f"{counted(volumes, 'volume')} of {counted(patients, 'patient')} in {out}\nnext: reasonknee {after}"
    )


@app.command(rich_help_panel=MAKE)
def construct(
    cohort: Annotated[
        Path | None, typer.Argument(help="Folder with tables/, images/, masks/ and perhaps splits/.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Annotations to write; default: annotations.jsonl in the cohort.")
    ] = None,
    label_map: Annotated[
        Path | None, typer.Option(help="JSON of your masks' labels: number -> region label, or null.")
    ] = None,
    splits: Annotated[
        str, typer.Option(help="Folder of split files, or `own`; default: the cohort's splits/, else own.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of our own splits.")] = 0,
    masks: Annotated[bool, typer.Option(help="Make boxes from masks; without, no box is known.")] = True,
    columns: Annotated[
        Path | None, typer.Option(help="JSON of your tables' columns: our variable -> their name.")
    ] = None,
    patients: Annotated[
        int, typer.Option(min=0, help="For a first try: so many patients, of every split; 0: all.")
    ] = 0,
    upstream: Annotated[
        Path | None,
        typer.Option(help="Folder of the published dataset's files, instead of tables and masks."),
    ] = None,
    corrections: Annotated[
        Path | None, typer.Option(help="A review by `reasonknee view`: its corrected grades and boxes hold.")
    ] = None,
    workers: Workers = 1,
    dask: Dask = "",
    max_bad: Annotated[
        int, typer.Option(min=0, help="End well with up to this many volumes that failed.")
    ] = 0,
    force: Annotated[bool, typer.Option(help="Replace the annotations that are there.")] = False,
) -> None:
    """Make annotations from sources: OAI's tables, scans and masks, or the published files."""
    from reasonknee.construct.assemble import Options
    from reasonknee.construct.columns import read_names
    from reasonknee.construct.command import run
    from reasonknee.construct.masks import DEFAULT_LABELS, read_label_map
    from reasonknee.system.workers import executor

    names = read_names(columns) if columns else {}
    options = Options(
        read_label_map(label_map) if label_map else DEFAULT_LABELS, splits, seed, masks, names, patients
    )
    bar = Bar()
    with executor(workers, dask) as pool:
        made = run(
            cohort,
            upstream,
            out,
            options,
            max_bad=max_bad,
            force=force,
            progress=bar,
            pool=pool,
            corrections=corrections,
        )
        for line in made:
            bar.close()
            typer.echo(line)


@app.command(rich_help_panel=MAKE)
def attach(
    annotations: Annotated[Path, typer.Argument(help="Annotations (.jsonl).")],
    images: Annotated[Path, typer.Option(help="Folder of your scans: NIfTI or DICOM, anywhere below it.")],
    out: Annotated[
        Path | None, typer.Option(help="Cohort folder of links to make; without it, nothing is written.")
    ] = None,
    max_bad: Annotated[
        int, typer.Option(min=0, help="End well with up to this many annotations without their scan.")
    ] = 0,
    accept: Accept = [],  # noqa: B006 - typer makes its own
    quick: Annotated[bool, typer.Option("--quick", help="Read headers only; `build` reads voxels.")] = False,
    workers: Workers = 1,
    dask: Dask = "",
) -> None:
    """Join annotations with your own scans, and make a cohort folder that `build` takes."""
    from reasonknee.construct.command import Joining, run_attach
    from reasonknee.system.workers import executor

    bar = Bar()
    wish = Joining(annotations, images, out, max_bad, frozenset(accept), quick)
    with executor(workers, dask) as pool:
        for line in run_attach(wish, bar, pool):
            bar.close()
            typer.echo(line)


def margin_of(text: str) -> float | str:
    """A number of millimetres, or a margin by its name; what is neither is told by the options of a build."""
    try:
        return float(text)
    except ValueError:
        return text


@app.command(rich_help_panel=MAKE)
def build(
    cohort: Annotated[Path, typer.Argument(help="Cohort folder.")],
    release: Annotated[Path, typer.Argument(help="Release folder to write; must not exist.")],
    configs: Annotated[
        str, typer.Option(help="Comma-separated; default: every config whose source the cohort has.")
    ] = "",
    questions: Annotated[str, typer.Option(help="Question set: paper62 or all69.")] = "paper62",
    margin: Annotated[
        str,
        typer.Option(
            help="Millimetres around the true box of a crop, or `evidence`: wide enough for each lesion."
        ),
    ] = "0",
    wording: Annotated[str, typer.Option(help="all, zero_shot, instruction or region.")] = "all",
    release_version: Annotated[str, typer.Option(help="MAJOR.MINOR.PATCH of the data.")] = "1.0.0",
    workers: Workers = 1,
    dask: Dask = "",
    shard: Annotated[
        str,
        typer.Option(
            help="i/n: do only this part, for array jobs; a last call without it finishes the release."
        ),
    ] = "",
    max_bad: Annotated[
        int,
        typer.Option(
            min=0, help="How many volumes with a damaged or missing image to leave out rather than fail."
        ),
    ] = 0,
    accept: Accept = [],  # noqa: B006 - typer makes its own
) -> None:
    """Build a release that `load_dataset` opens: Parquet, card, Croissant, schemas, manifest."""
    from reasonknee.cohort import Cohort
    from reasonknee.release import Build, Options
    from reasonknee.system.workers import executor

    bar = Bar()
    chosen = [c.strip() for c in configs.split(",") if c.strip()] or None
    job = Build(
        Cohort(cohort),
        release,
        chosen,
        Options(questions, margin_of(margin), wording),
        release_version=release_version,
        max_bad=max_bad,
        accept=accept,
        progress=bar,
    )
    if shard and dask:
        raise typer.BadParameter("--shard and --dask are two ways to spread one build: choose one")
    try:
        with executor(workers, dask) as pool:
            if shard:
                part, of = part_of(shard)
                groups = job.run_part(part, of, pool)
                bar.close()
                typer.echo(f"part {part} of {of}: {groups} groups of shards are done in {job.folder}")
                return
            manifest = job.run(pool)
    except KeyboardInterrupt:
        typer.echo(
            f"interrupted: what is finished is kept in {job.folder}; the same command goes on from there",
            err=True,
        )
        raise typer.Exit(130) from None
    except OSError as error:
        raise StorageError(
            "R010",
            f"the build stopped: {reason(error)}",
            f"{remedy(error)}; the same command goes on from {job.folder}",
        ) from None
    finally:
        bar.close()
    if job.was_finished:
        typer.echo(f"release: {release} (the same command finished it before; nothing was to do)")
        return
    for config in manifest.configs:
        shards = manifest.of(config)
        size = sum(s.bytes for s in shards) / 1e6
        typer.echo(
            f"{config:12} {sum(s.rows for s in shards):>9,} rows {len(shards):>5} shards {size:>10,.1f} MB"
        )
    counts = ", ".join(f"{n} {split}" for split, n in manifest.volumes.items())
    some = ", ".join(f"{name} {code}" for name, code in list(manifest.quarantined.items())[:5]) + (
        ", ..." if len(manifest.quarantined) > 5 else ""
    )
    left_out = (
        f" ({len(manifest.quarantined)} left out: {some}; manifest.json has them)"
        if manifest.quarantined
        else ""
    )
    typer.echo(f"volumes: {counts}{left_out}\nrelease: {release}")


@app.command(rich_help_panel=MAKE)
def migrate(
    old: Annotated[Path, typer.Argument(help="Release folder of an earlier layout; it stays as it is.")],
    new: Annotated[Path, typer.Argument(help="Release folder to write; must not exist.")],
    workers: Workers = 1,
) -> None:
    """Rewrite a release of an earlier layout: the same volumes, questions, boxes and grades."""
    from reasonknee.release.migrate import migrate as rewrite
    from reasonknee.system.workers import executor

    bar = Bar()
    try:
        with executor(workers) as pool:
            manifest = rewrite(old, new, pool, bar)
    except OSError as error:
        raise StorageError(
            "R010", f"the migration stopped: {reason(error)}", f"{remedy(error)} and run it again"
        ) from None
    finally:
        bar.close()
    typer.echo(
        f"{sum(s.rows for s in manifest.shards):,} rows in {len(manifest.shards)} shards, layout "
        f"{manifest.layout_version}: {new}\nnext: reasonknee validate {quote(str(new))}"
    )
