"""Ask and train: vision embeddings and fine-tuning."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reasonknee.cli.app import ASK, Bar, app, part_of
from reasonknee.errors import UsageError
from reasonknee.layout.sgmri import is_release

if TYPE_CHECKING:
    from reasonknee.models.training_rows import Recipe

Model = Annotated[
    str, typer.Option(help="Checkpoint folder or owner/name on the Hub: Qwen2.5-VL or Qwen3-VL.")
]
Slices = Annotated[str, typer.Option(help="What is shown: all, even:N, every:K.")]
FrameSize = Annotated[
    int, typer.Option(min=0, help="Longest side of a frame in pixels; 0 for the volume's own.")
]
Dtype = Annotated[str, typer.Option(help="Type of the weights: auto, bfloat16, float16 or float32.")]


def _view(slices: str, size: int, form: str = "voxels") -> Any:
    from reasonknee.models.views import View

    return View(slices, size=size or None, form=form)


@app.command(rich_help_panel=ASK)
def embed(
    release: Annotated[str, typer.Argument(help="Release folder or Hub repo with the config `full`.")],
    model: Model,
    out: Annotated[
        Path, typer.Option(help="HDF5 file to write; a cohort's embeddings.h5 is what `build` takes.")
    ],
    slices: Slices = "all",
    size: FrameSize = 0,
    dtype: Annotated[str, typer.Option(help="Of the embeddings: bfloat16 or float16.")] = "bfloat16",
    shard: Annotated[
        str, typer.Option(help="i/n: do only this part, for array jobs; a last call joins all.")
    ] = "",
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, ...; default: a GPU where there is one.")
    ] = "",
    estimate: Annotated[bool, typer.Option("--estimate", help="Tell the size on disk, and stop.")] = False,
) -> None:
    """Run volumes through a model's vision tower once, with all that is needed to use the result."""
    from reasonknee.models import embed as embedding
    from reasonknee.models.local import Local

    view = _view(slices, size)
    local = Local.load(model, device=device or None)
    typer.echo(str(embedding.size_of(release, local, view)))
    if estimate:
        return
    bar = Bar()
    part, of = part_of(shard) if shard else (1, 1)
    try:
        made = embedding.embed(embedding.Embedding(release, local, view, dtype), out, part, of, bar)
    finally:
        bar.close()
    typer.echo(
        f"wrote {made}" if made else f"part {part} of {of} is done; a last call without --shard joins all"
    )


@app.command(rich_help_panel=ASK)
def train(
    release: Annotated[str, typer.Argument(help="Release folder or Hub repo.")],
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder of the run; the same command again resumes it.")],
    arm: Annotated[
        str, typer.Option(help="What is taught: no_reasoning, reasoning, answer_first or box_given.")
    ] = "reasoning",
    setting: Annotated[
        str, typer.Option(help="zero_shot, instruction, or region: the true region alone.")
    ] = "instruction",
    reasoning: Annotated[str, typer.Option(help="derived or published steps.")] = "derived",
    packed: Annotated[
        bool,
        typer.Option(
            "--packed", help="All questions of a volume in one forward pass: the same gradients, faster."
        ),
    ] = False,
    questions_per_volume: Annotated[
        int, typer.Option(min=0, help="Questions drawn of a volume; 0 for all.")
    ] = 0,
    sampling: Annotated[
        str, typer.Option(help="natural, or balanced: rare grades as often as frequent ones.")
    ] = "natural",
    weighting: Annotated[
        str, typer.Option(help="What the loss is averaged over: tokens, questions, volumes.")
    ] = "questions",
    embeddings: Annotated[Path | None, typer.Option(help="File of `embed`, in place of pixels.")] = None,
    slices: Slices = "all",
    size: FrameSize = 0,
    form: Annotated[
        str, typer.Option(help="How boxes are written; `reasonknee ask --help` lists the forms.")
    ] = "voxels",
    adapter: Annotated[str, typer.Option(help="An adapter to go on from.")] = "",
    full: Annotated[bool, typer.Option("--full", help="Train all weights instead of an adapter.")] = False,
    rate: Annotated[float, typer.Option(min=0, help="Learning rate.")] = 1e-4,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Forward passes for each step of the optimizer.")
    ] = 8,
    epochs: Annotated[float, typer.Option(min=0, help="Passes over the data.")] = 2.0,
    steps: Annotated[int, typer.Option(help="Stop after so many steps; -1 for the epochs.")] = -1,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 50,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Less memory, more time.")] = False,
    dtype: Dtype = "auto",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same run.")] = 0,
    evaluate_every: Annotated[
        int, typer.Option(min=0, help="Steps between looks at the validation split; 0 for none.")
    ] = 0,
    patience: Annotated[
        int, typer.Option(min=0, help="Stop after so many evaluations without improvement; 0: never.")
    ] = 0,
    report_to: Annotated[str, typer.Option(help="tensorboard, wandb or none.")] = "none",
    dry_run: Annotated[
        Path | None, typer.Option(help="Write one example with its labels as a page, and stop.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run a few steps to test this machine and its speed.")
    ] = False,
) -> None:
    """Fine-tune a model on a release: labels on the answers alone, an exact order, an exact resume."""
    from reasonknee.models import training
    from reasonknee.models.targets import Teaching
    from reasonknee.models.training_rows import Recipe

    frames = is_release(release)  # of SGMRI-VQA, whose boxes lie on frames
    recipe = Recipe(
        view=_view(slices, size, "voxels" if frames else form),
        teaching=Teaching(arm, setting, reasoning),
        packed=packed,
        questions_per_volume=questions_per_volume,
        sampling=sampling,
        weighting=weighting,
        full=full,
        rate=rate,
        accumulate=accumulate,
        epochs=epochs,
        steps=steps,
        save_every=save_every,
        checkpointing=checkpointing,
        seed=seed,
    )
    job = training.Job(
        release, model, out, adapter or None, dtype, None, report_to, embeddings, evaluate_every, 8, patience
    )
    if frames:
        from reasonknee.sgmri.train import fine_tune_questions

        if dry_run or check:
            raise UsageError("Z062", "--dry-run or --check on SGMRI-VQA", "they are for quintuples of knees")
        folder = fine_tune_questions(job, recipe, "paper" if form == "voxels" else form, typer.echo)
        typer.echo(f"trained: {folder}")
        return
    if dry_run:
        from reasonknee.models.dry_run import write_example

        typer.echo(f"wrote {write_example(job, recipe, dry_run)}")
        return
    if check:
        from reasonknee.models.check import checked

        for line in checked(job, recipe):
            typer.echo(line)
        return
    folder = training.fine_tune(job, recipe, typer.echo)
    if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
        typer.echo(
            f"trained: {folder}\nnext: reasonknee ask {quote(release)} --model {quote(model)} "
            f"--adapter {quote(str(folder))} {_seen_alike(recipe)} --out answers"
        )


def _seen_alike(recipe: Recipe) -> str:
    """Options by which `ask` shows and asks as was taught, where they are not its defaults."""
    from reasonknee.models import View

    view, taught, plain = recipe.view, recipe.teaching, View()
    told = {
        "--setting": taught.setting,
        "--arm": taught.arm,
        "--slices": view.slices if view.slices != plain.slices else None,
        "--size": view.size,
        "--window": view.window if view.window != plain.window else None,
        "--form": view.form if view.form != plain.form else None,
    }
    return " ".join(f"{option} {quote(str(value))}" for option, value in told.items() if value is not None)


@app.command(rich_help_panel=ASK)
def merge(
    adapter: Annotated[Path, typer.Argument(help="RUN/adapter or RUN/best, as `train` left it.")],
    out: Annotated[Path, typer.Argument(help="Folder to write: a model that needs no adapter.")],
    model: Annotated[str, typer.Option(help="What it was trained on, if that has moved.")] = "",
    scores: Annotated[
        Path | None, typer.Option(help="What `score --out` wrote of its answers, for the card.")
    ] = None,
) -> None:
    """Put an adapter into the weights of its model: one folder for servers, with a card and scores."""
    from reasonknee.models.tuned import merge

    typer.echo(f"wrote {merge(adapter, out, model or None, scores)}")
