"""Ask and train: models on a release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from reasonknee.cli.app import ASK, Bar, app
from reasonknee.errors import UsageError, shown
from reasonknee.layout.sgmri import is_release


@app.command(rich_help_panel=ASK)
def ask(
    release: Annotated[str, typer.Argument(help="Release folder or Hub repo with the config `full`.")],
    model: Annotated[str, typer.Option(help="Checkpoint folder or Hub name; with --server, its name there.")],
    out: Annotated[Path, typer.Option(help="Folder of the run: journal, predictions and ledger.")],
    server: Annotated[
        list[str] | None,
        typer.Option(help="OpenAI-compatible address, such as http://host:8000/v1; may be repeated."),
    ] = None,
    setting: Annotated[
        str, typer.Option(help="zero_shot, instruction, region, both or locate_grade.")
    ] = "zero_shot",
    control: Annotated[str, typer.Option(help="blank, swapped, text or occluded; default: none.")] = "",
    split: Annotated[str, typer.Option(help="Split to ask.")] = "test",
    slices: Annotated[str, typer.Option(help="all, even:N, every:K or planes:N.")] = "all",
    size: Annotated[int, typer.Option(min=0, help="Longest side of a frame; 0 for the volume's own.")] = 0,
    window: Annotated[str, typer.Option(help="percentile, paper or LO:HI.")] = "percentile",
    orientation: Annotated[str, typer.Option(help="stored, or where z, y, x grow to, e.g. LIP.")] = "stored",
    kind: Annotated[str, typer.Option(help="video or images; default: video, and images to servers.")] = "",
    form: Annotated[
        str,
        typer.Option(
            help="Of boxes: voxels, pixels, thousand, frames_pixels, frames_thousand, unit or cuboid; on "
            "SGMRI-VQA paper, pixels, thousand or gemini."
        ),
    ] = "voxels",
    multiple: Annotated[
        int, typer.Option(min=1, help="Sides of frames in multiples of so many pixels, see docs/asking.md.")
    ] = 1,
    margin: Annotated[float, typer.Option(min=0, help="Millimetres around a region that is cut out.")] = 10.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0, help="0 for the likeliest answer.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed for drawing answers and for --sample.")] = 0,
    grammar: Annotated[
        bool, typer.Option("--grammar", help="The last object follows its schema (extra `grammar`).")
    ] = False,
    adapter: Annotated[str, typer.Option(help="LoRA adapter of a local model.")] = "",
    arm: Annotated[
        str, typer.Option(help="Wording of the prompts: the --arm that a tuned model was trained with.")
    ] = "",
    boxes: Annotated[
        Path | None, typer.Option(help="Predictions whose boxes are cut out in place of the true ones.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    four_bit: Annotated[bool, typer.Option("--four-bit", help="Load weights in 4 bits.")] = False,
    device: Annotated[
        str, typer.Option(help="cuda, cuda:1, cpu; default: the first GPU, else the CPU.")
    ] = "",
    revision: Annotated[str, typer.Option(help="Commit or tag of a model on the Hub.")] = "",
    positions: Annotated[
        str, typer.Option(help="after_max or after_grid, see docs/asking.md.")
    ] = "after_max",
    batch: Annotated[int, typer.Option(min=1, help="Questions at once, locally.")] = 8,
    interface: Annotated[str, typer.Option(help="module:function that loads a model of your own.")] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once, at each server.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 600.0,
    tries: Annotated[int, typer.Option(min=1, help="Attempts at a request where waiting may help.")] = 6,
    key_name: Annotated[
        str, typer.Option(help="Environment variable that holds the API key.")
    ] = "OPENAI_API_KEY",
    field: Annotated[
        list[str] | None,
        typer.Option(help="NAME=JSON: a field of requests to a server; null leaves one out. Repeat it."),
    ] = None,
    price_in: Annotated[float, typer.Option(min=0, help="Dollars for a million tokens of prompts.")] = 0.0,
    price_cached: Annotated[
        float, typer.Option(help="Dollars for a million cached tokens; default: --price-in.")
    ] = -1.0,
    price_out: Annotated[float, typer.Option(min=0, help="Dollars for a million tokens of answers.")] = 0.0,
    max_cost: Annotated[
        float, typer.Option(min=0, help="Stop before so many dollars are spent; 0: no limit.")
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=0, help="Ask only so many quintuples, the first; 0 for all.")] = 0,
    sample: Annotated[
        int, typer.Option(min=0, help="Ask so many quintuples, spread evenly over patients; 0 for all.")
    ] = 0,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Show what is left to ask and what it will cost; send nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write one request and a picture of its images; send nothing.")
    ] = False,
    probe: Annotated[bool, typer.Option(help="Find out first what each server honours.")] = True,
) -> None:
    """Ask a vision-language model the questions of a split, and write its predictions.

    If it is interrupted, run the same command again: what was answered is not asked again.
    """
    from reasonknee.models import Parameters, View
    from reasonknee.models.command import Asking, ask_release
    from reasonknee.models.ledger import Prices
    from reasonknee.models.plan import Choice

    if estimate and dry_run:
        raise UsageError("N051", "--estimate and --dry-run at once", "choose one")
    frames = is_release(release)  # of SGMRI-VQA, whose boxes lie on frames
    told_as = "voxels" if frames else form
    kind = kind or ("images" if server else "video")
    view = View(slices, size or None, window, orientation, kind, told_as, multiple)
    choice = Choice(
        setting, control or None, view, Parameters(max_tokens, temperature, seed, grammar), margin, arm
    )
    local: dict[str, Any] = {
        "adapter": adapter or None,
        "dtype": dtype,
        "four_bit": four_bit,
        "device": device or None,
        "revision": revision or None,
        "rule": positions,
        "batch": batch,
    }
    remote: dict[str, Any] = {
        "key_name": key_name,
        "concurrency": concurrency,
        "timeout": timeout,
        "tries": tries,
        "extra": dict(_field(text) for text in field or ()),
    }
    asking = Asking(
        model=model,
        servers=tuple(server or ()),
        interface=interface,
        local=local,
        remote=remote,
        probe=probe,
        split=split,
        boxes=boxes,
        limit=limit,
        sample=sample,
        prices=Prices(price_in, None if price_cached < 0 else price_cached, price_out),
        max_cost=max_cost or None,
        mode="estimate" if estimate else "dry-run" if dry_run else "ask",
    )
    stopped = False
    lines = ask_release(release, out, choice, asking)
    if frames:
        from reasonknee.sgmri.ask import ask_questions

        lines = ask_questions(release, out, choice, asking, "paper" if form == "voxels" else form)
    for line in lines:
        typer.echo(line)
        stopped = stopped or line.startswith("stopped: ")
    raise typer.Exit(3 if stopped else 0)


def _field(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise UsageError("N051", f"--field {shown(text)}", "NAME=JSON, such as temperature=null") from None


@app.command(rich_help_panel=ASK)
def export(
    context: typer.Context,
    tool: Annotated[str, typer.Argument(help="trl, ms-swift, med3dvlm or nnunet.")],
    source: Annotated[
        str,
        typer.Argument(
            help="Release folder or Hub repo with the config `full`; for nnunet a cohort with masks.",
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    split: Annotated[str, typer.Option(help="Split to write; med3dvlm writes all of them.")] = "train",
    setting: Annotated[str, typer.Option(help="zero_shot or instruction.")] = "instruction",
    arm: Annotated[
        str, typer.Option(help="For med3dvlm: no_reasoning, reasoning or answer_first.")
    ] = "reasoning",
    slices: Annotated[str, typer.Option(help="all, even:N, every:K or planes:N.")] = "even:16",
    size: Annotated[int, typer.Option(min=0, help="Longest side of a frame; 0 for the volume's own.")] = 0,
    window: Annotated[str, typer.Option(help="percentile, paper or LO:HI.")] = "percentile",
    kind: Annotated[str, typer.Option(help="video or images.")] = "images",
    form: Annotated[str, typer.Option(help="Of boxes, as for `ask`.")] = "voxels",
    limit: Annotated[int, typer.Option(min=0, help="Only the first so many rows; 0 for all.")] = 0,
    label_map: Annotated[
        Path | None, typer.Option(help="For nnunet: JSON of your masks' labels, as for `construct`.")
    ] = None,
) -> None:
    """Write rows and images, or a cohort's masks, in the format of another trainer."""
    from reasonknee.models import View
    from reasonknee.models.export import export as write

    _refuse_idle(context, tool)
    if tool == "nnunet":
        from reasonknee.construct.masks import DEFAULT_LABELS, read_label_map
        from reasonknee.construct.nnunet import export as write_nnunet

        bar = Bar()
        labels = read_label_map(label_map) if label_map else DEFAULT_LABELS
        for line in write_nnunet(Path(source), out, bar, labels):
            bar.close()
            typer.echo(line)
        return
    if tool == "med3dvlm":
        from reasonknee.models.med3dvlm import export as write_med3dvlm

        for name, count in write_med3dvlm(source, out, setting, arm, limit).items():
            typer.echo(f"{count:,} rows in {out / f'{name}.csv'}")
        typer.echo(f"read {out / 'README.md'} first: its training code breaks boxes")
        return
    view = View(slices, size or None, window, "stored", kind, form)
    rows = write(tool, source, out, split, setting, view, limit)
    typer.echo(f"{rows:,} rows in {out / f'{split}.jsonl'}")


def _refuse_idle(context: typer.Context, tool: str) -> None:
    """Refuses an option that the tool's format has no place for."""
    idle = {
        "nnunet": set(context.params) - {"label_map"},
        "med3dvlm": set(context.params) - {"setting", "arm", "limit"},
    }
    given = (
        name
        for name in idle.get(tool, {"arm", "label_map"})
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    )
    for name in sorted(set(given) - {"tool", "source", "out"}):
        raise UsageError("N056", f"--{name.replace('_', '-')} does nothing for {tool}", "leave it out")


@app.command(rich_help_panel=ASK)
def import_med3dvlm(
    results: Annotated[Path, typer.Argument(help="What its eval_vqa.py wrote: ..._eval_open_vqa.csv.")],
    exported: Annotated[Path, typer.Argument(help="The folder of `export med3dvlm`.")],
    release: Annotated[str, typer.Argument(help="The release that was exported.")],
    out: Annotated[Path, typer.Argument(help="File of predictions to write; must not exist.")],
    split: Annotated[str, typer.Option(help="Split that was asked.")] = "test",
) -> None:
    """Bring Med3DVLM's answers back as predictions that `score` reads, with boxes in voxels."""
    from reasonknee.models.med3dvlm import bring_back

    kept, strange = bring_back(results, exported, release, out, split)
    typer.echo(f"{kept:,} predictions in {out}")
    if strange:
        typer.echo(f"{strange:,} rows are not of their question and were left out: it drew another at random")
