"""`reasonknee`: one command, one subcommand per stage, in the order in which data flows. Thin: each calls one function of the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from reasonknee.errors import StorageError, UsageError, reason, reported
from reasonknee.limits import SECONDS
from reasonknee.version import VERSION

app = typer.Typer(
    name="reasonknee",
    help="3DReasonKnee: from a cohort of knee MRIs to a release, a training loop and a score.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_Misuse: Any = typer.BadParameter.__bases__[0]  # click's UsageError, or that of typer's own copy of click


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reasonknee {VERSION}")
        raise typer.Exit


@app.callback()
def _top(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False) -> None:
    pass


@app.command()
def phantom(
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    patients: Annotated[int, typer.Option(help="How many patients; each has one or two knees and one to three visits.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    shape: Annotated[str, typer.Option(help="Voxels as Z,Y,X; 160,384,384 is OAI's.")] = "160,384,384",
) -> None:
    """Make a synthetic cohort: images, masks, tables, embeddings and annotations."""
    from reasonknee.phantom.cohort import write_cohort

    bar = _Bar()
    volumes = write_cohort(out, patients, seed, _shape(shape), lambda done, of: bar("drawing knees", done, of))
    bar.close()
    typer.echo(f"{volumes} volumes of {patients} patients in {out}\nnext: reasonknee build {out} <release folder>")


@app.command()
def build(
    cohort: Annotated[Path, typer.Argument(help="Cohort folder.")],
    release: Annotated[Path, typer.Argument(help="Release folder to write; must not exist.")],
    configs: Annotated[str, typer.Option(help="Comma-separated; default: every config whose source the cohort has.")] = "",
    questions: Annotated[str, typer.Option(help="Question set: paper62 or all69.")] = "paper62",
    margin: Annotated[float, typer.Option(help="Millimetres around the ground-truth box of a crop.")] = 0.0,
    wording: Annotated[str, typer.Option(help="both, zero_shot or instruction.")] = "both",
    release_version: Annotated[str, typer.Option(help="MAJOR.MINOR.PATCH of the data.")] = "1.0.0",
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    dask: Annotated[str, typer.Option(help="Address of a Dask scheduler to run on instead, e.g. tcp://node:8786.")] = "",
    shard: Annotated[str, typer.Option(help="i/n: do only this part, for array jobs; a last call without it finishes the release.")] = "",
    max_bad: Annotated[int, typer.Option(min=0, help="How many volumes with a damaged or missing image to leave out rather than fail.")] = 0,
) -> None:
    """Build a release that `load_dataset` opens: Parquet, card, Croissant, schemas, manifest."""
    from reasonknee.cluster import dask_executor
    from reasonknee.cohort import Cohort
    from reasonknee.materialise import Options
    from reasonknee.release import Build

    bar = _Bar()
    chosen = [c.strip() for c in configs.split(",") if c.strip()] or None
    job = Build(Cohort(cohort), release, chosen, Options(questions, margin, wording), release_version=release_version, max_bad=max_bad, progress=bar)
    if shard and dask:
        raise typer.BadParameter("--shard and --dask are two ways to spread one build: choose one")
    try:
        if shard:
            part, of = _part(shard)
            groups = job.run_part(part, of, workers)
            bar.close()
            typer.echo(f"part {part} of {of}: {groups} groups of shards are done in {job.folder}")
            return
        if dask:
            with dask_executor(dask) as executor:
                manifest = job.run(executor)
        else:
            manifest = job.run(workers=workers)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: what is finished is kept in {job.folder}; the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    except OSError as error:
        raise StorageError("R010", f"the build stopped: {reason(error)}", f"make room; the same command goes on from {job.folder}") from None
    finally:
        bar.close()
    for config in manifest.configs:
        shards = manifest.of(config)
        size = sum(s.bytes for s in shards) / 1e6
        typer.echo(f"{config:12} {sum(s.rows for s in shards):>9,} rows {len(shards):>5} shards {size:>10,.1f} MB")
    counts = ", ".join(f"{n} {split}" for split, n in manifest.volumes.items())
    some = ", ".join(f"{name} {code}" for name, code in list(manifest.quarantined.items())[:5]) + (", ..." if len(manifest.quarantined) > 5 else "")
    left_out = f" ({len(manifest.quarantined)} left out: {some}; manifest.json has them)" if manifest.quarantined else ""
    typer.echo(f"volumes: {counts}{left_out}\nrelease: {release}")


@app.command()
def questions(
    key: Annotated[str, typer.Argument(help="Question id or upstream's integer; without it, all are listed.")] = "",
    wording: Annotated[str, typer.Option(help="zero_shot or instruction.")] = "instruction",
) -> None:
    """List the questions, or print one as a model gets it."""
    from reasonknee.prompts import WORDINGS, wordings
    from reasonknee.questions import QUESTIONS, question

    if wording not in WORDINGS:
        raise UsageError("C002", f"unknown wording {wording!r}", f"choose one of {', '.join(WORDINGS)}")
    if key:
        typer.echo(wordings(question(key))[wording])
        return
    for q in QUESTIONS.values():
        category = f"{q.category.id} ({q.category.title})"  # filters take the id, tables show the title
        typer.echo(f"{q.upstream_id:>2}  {q.id:38} {category:42} {q.region.id:26} {', '.join(a.id for a in q.attributes)}")


@app.command()
def look(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    row_id: Annotated[str, typer.Option("--id", help="Quintuple id; default: the first one with a finding.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write a picture of the slice with its box (needs the extra `report`).")] = None,
) -> None:
    """Print a quintuple of each config, and draw its slice with the box."""
    from reasonknee.look import describe_release

    for line in describe_release(release, row_id, out):
        typer.echo(line)


@app.command()
def validate(
    target: Annotated[str, typer.Argument(help="Release folder, cohort folder or Hub repo (owner/name).")] = "",
    revision: Annotated[str | None, typer.Option(help="Branch, tag, commit or refs/pr/N of a Hub repo.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Names, sizes, card and footers only; no row is read.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings, or with --list the checks, as JSON.")] = False,
    github: Annotated[bool, typer.Option("--github", help="Print the findings as GitHub annotations, too.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print every check and exit.")] = False,
) -> None:
    """Check a release, a cohort or a repo: exit 0 if it is sound, 3 if a finding is an error."""
    from reasonknee.validation import findings, report, run

    if listed and as_json:
        typer.echo(report.checks_as_json())
        return
    if listed:
        for check in findings.CHECKS.values():
            typer.echo(f"{check.code}  {check.level:8} {check.theme:10} {check.title}")
        return
    if not target:
        raise UsageError("X001", "nothing to check", "name a release folder, a cohort folder or a Hub repo")
    bar = _Bar()
    try:
        found = run.validate(target, revision=revision, quick=quick, workers=workers, progress=bar)
    finally:
        bar.close()
    typer.echo(report.as_json(found, target, quick) if as_json else report.as_text(found, target, quick))
    if github and found:
        typer.echo(report.as_github(found, target), err=as_json)
    raise typer.Exit(3 if found.count("error") else 0)


@app.command()
def construct(
    cohort: Annotated[Path | None, typer.Argument(help="Folder with tables/, images/, masks/ and perhaps splits/.")] = None,
    out: Annotated[Path | None, typer.Option(help="Annotations to write; default: annotations.jsonl in the cohort.")] = None,
    label_map: Annotated[Path | None, typer.Option(help="JSON of your masks' labels: number -> region label, or null.")] = None,
    splits: Annotated[str, typer.Option(help="Folder of split files, or `own`; default: the cohort's splits/, else own.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of our own splits.")] = 0,
    masks: Annotated[bool, typer.Option(help="Make boxes from masks; without, no box is known.")] = True,
    upstream: Annotated[Path | None, typer.Option(help="Folder of the published dataset's files, instead of tables and masks.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    max_bad: Annotated[int, typer.Option(min=0, help="End well with up to this many volumes that failed.")] = 0,
    force: Annotated[bool, typer.Option(help="Replace the annotations that are there.")] = False,
) -> None:
    """Make annotations from sources: OAI's tables, scans and masks, or the published files."""
    from reasonknee.construct.assemble import Options
    from reasonknee.construct.command import run
    from reasonknee.construct.masks import DEFAULT_LABELS, read_label_map

    options = Options(read_label_map(label_map) if label_map else DEFAULT_LABELS, splits, seed, masks, workers)
    bar = _Bar()
    for line in run(cohort, upstream, out, options, max_bad=max_bad, force=force, progress=bar):
        bar.close()
        typer.echo(line)


@app.command()
def attach(
    annotations: Annotated[Path, typer.Argument(help="Annotations (.jsonl).")],
    images: Annotated[Path, typer.Option(help="Folder of your scans: NIfTI or DICOM, anywhere below it.")],
    out: Annotated[Path | None, typer.Option(help="Cohort folder of links to make; without it, nothing is written.")] = None,
    max_bad: Annotated[int, typer.Option(min=0, help="End well with up to this many annotations without their scan.")] = 0,
) -> None:
    """Join annotations with your own scans, and make a cohort folder that `build` takes."""
    from reasonknee.construct.command import run_attach

    bar = _Bar()
    for line in run_attach(annotations, images, out, max_bad, bar):
        bar.close()
        typer.echo(line)


@app.command()
def parse(
    question_id: Annotated[str, typer.Argument(help="Question id or upstream's integer.")],
    shape: Annotated[str, typer.Option(help="Voxels of the volume as Z,Y,X: refuses boxes outside it, and normalised boxes need it.")] = "",
    convention: Annotated[str, typer.Option(help="How six plain numbers are a box: canonical, upstream, frames or normalised.")] = "canonical",
) -> None:
    """Read a model's text from standard input, and print what it answers as one JSON object."""
    import json

    from reasonknee.answers import read
    from reasonknee.questions import question

    asked, voxels = question(question_id), _shape(shape) if shape else None  # before it waits for a text
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    typer.echo(json.dumps(read(asked, text, shape=voxels, box_convention=convention).as_dict()))


@app.command()
def score(
    predictions: Annotated[Path, typer.Argument(help="JSON Lines: `id` with `response`, or with `grades` and `box`.")],
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    split: Annotated[str, typer.Option(help="Split to score.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder for scores.json, scores.md, report.html and the Hub's files.")] = None,
    convention: Annotated[str, typer.Option(help="How six plain numbers are a box: canonical, upstream, frames or normalised.")] = "canonical",
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples of patients.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same intervals.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that read the answers.")] = 2,
    model: Annotated[str, typer.Option(help="The model's name in the report; default: the file's.")] = "",
) -> None:
    """Score predictions: diagnosis, boxes, reasoning, beside baselines and with intervals over patients."""
    from reasonknee.report import markdown, write_report
    from reasonknee.scoring import score as score_file

    scored = score_file(predictions, release, split, convention=convention, samples=bootstrap, seed=seed, workers=workers, model=model)
    written = write_report(scored, out, release, predictions) if out else ()  # before a word is printed: a closed pipe loses no file
    typer.echo("\n".join([markdown(scored.scores), *(f"wrote {path}" for path in written)]))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Predictions of one model.")],
    b: Annotated[Path, typer.Argument(help="Predictions of another one.")],
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    split: Annotated[str, typer.Option(help="Split to score.")] = "test",
    out: Annotated[Path | None, typer.Option(help="File for the same as JSON.")] = None,
    convention: Annotated[str, typer.Option(help="How six plain numbers are a box: canonical, upstream, frames or normalised.")] = "canonical",
    bootstrap: Annotated[int, typer.Option(min=1, help="Resamples of patients, and permutations.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that read the answers.")] = 2,
) -> None:
    """Compare two models on the same patients: differences with intervals, and a paired permutation test."""
    import json

    from reasonknee.report.markdown import comparison
    from reasonknee.scoring import compare as compare_files

    found = compare_files(a, b, release, split, convention=convention, samples=bootstrap, seed=seed, workers=workers)
    typer.echo(comparison(found))
    if out:
        out.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        typer.echo(f"wrote {out}")


@app.command("check-volume")
def check_volume(
    files: Annotated[list[Path], typer.Argument(help="NIfTI or HDF5 files, or folders with a DICOM series.")],
    seconds: Annotated[float, typer.Option(min=0.001, max=3600, help="Of the processor, for each file; what takes longer is refused.")] = SECONDS,
) -> None:
    """Show the input gate's verdict on each file, a line each: exit 0 if all are let in, 3 if not."""
    from reasonknee.gate import print_verdicts

    raise typer.Exit(print_verdicts(files, seconds))


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="Release folder.")],
    new: Annotated[Path, typer.Argument(help="Release folder that follows it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the difference as JSON.")] = False,
) -> None:
    """Compare two releases: rows, grades, splits, and the version step this needs; exit 3 if a smaller one was declared."""
    from reasonknee.validation import diff as differ

    bar = _Bar()
    try:
        difference = differ.compare(old, new, progress=bar)
    finally:
        bar.close()
    typer.echo(differ.as_json(difference) if as_json else differ.as_text(difference))
    raise typer.Exit(0 if difference.enough else 3)


@app.command()
def publish(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    repo: Annotated[str, typer.Argument(help="Dataset repo on the Hub, owner/name; it must exist.")],
    pr: Annotated[bool, typer.Option("--pr", help="Open a pull request instead of committing to main.")] = False,
    accept_oai_terms: Annotated[bool, typer.Option("--accept-oai-terms", help="Who reads the repo may have OAI's images: upload them.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that check the release first.")] = 1,
) -> None:
    """Check a release and upload it to the Hub: images to a private or gated repo only, elsewhere `annotations` alone.

    The token comes from HF_TOKEN or `hf auth login`, never from an option.
    """
    from reasonknee.publish import publish as upload

    bar = _Bar()
    done = upload(release, repo, pr=pr, accept_oai_terms=accept_oai_terms, workers=workers, progress=bar)
    bar.close()
    if done.held_back:
        typer.echo(f"annotations alone: {done.held_back}", err=True)
    typer.echo(done.url)


_FLOW = ("phantom", "construct", "attach", "build", "look", "validate", "diff", "publish", "check-volume", "questions", "parse", "score", "compare")
app.registered_commands.sort(key=lambda c: _FLOW.index(c.name or str(getattr(c.callback, "__name__", ""))))


class _Bar:
    """A progress bar on standard error, new for each stage; silent where nobody watches. Counts volumes, or MB where the stage says so."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.stage = ""

    def __call__(self, stage: str, done: int, of: int) -> None:
        from tqdm import tqdm

        if stage != self.stage:
            self.close()
            what, unit = stage.removesuffix(", MB"), "MB" if stage.endswith(", MB") else "vol"
            self.stage, self.bar = stage, tqdm(total=of, desc=what, unit=unit, disable=not sys.stderr.isatty())
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _part(text: str) -> tuple[int, int]:
    part, _, of = text.partition("/")
    if not (part.isascii() and part.isdigit() and of.isascii() and of.isdigit()):
        raise typer.BadParameter(f"{text!r} is not i/n, such as 1/16")
    return int(part), int(of)


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(p.strip().isascii() and p.strip().isdigit() for p in parts):
        raise typer.BadParameter(f"{text!r} is not Z,Y,X")
    z, y, x = (int(p) for p in parts)
    return (z, y, x)


def run() -> None:
    """The command; a mistake in calling it is one line with a code, as all others are."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except _Misuse as mistake:
        if type(mistake).__name__ == "NoArgsIsHelpError":
            mistake.show()
            sys.exit(2)
        told = " ".join(str(mistake.format_message()).split()).rstrip(".")
        name = mistake.ctx.command_path if mistake.ctx else "reasonknee"
        raise UsageError("I001", told, f"`{name} --help` shows how it is called") from None
    except typer.Abort:  # Ctrl-C
        sys.exit(130)


def main() -> None:
    reported(run)


if __name__ == "__main__":
    main()
