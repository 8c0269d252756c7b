"""Commands for models: train, pack and list them."""

from typing import Annotated, Any

import typer

from bayescade.cli.answers import print_answer, print_warnings
from bayescade.cli.app import app
from bayescade.cli.options import (
    Attenuation,
    Case,
    Device,
    GeometryFile,
    Json,
    NoiseLevel,
    NoiseModel,
    NoiseSettings,
    Photons,
    Seed,
    Settings,
    noise_of,
)


@app.command(epilog="Example: bayescade train bdgd-plus --case sparse-32 --out runs/bdgd-plus-32")
def train(
    method: Annotated[str, typer.Argument(help="unet, lpd, dgd, bdgd, bdgd-plus or a plugin.")],
    out: Annotated[str, typer.Option(help="The run folder; the same command resumes an interrupted run.")],
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[
        str | None, typer.Option(help="Images to train on instead of ellipse images (.npy, .npz, .h5).")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="recommended, paper, as-released, or any (a model for any scan).")
    ] = "recommended",
    start_from: Annotated[
        str | None, typer.Option("--from", help="Start from this model for any scan; e.g. --from any.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="A TOML file of settings, which replace settings of the preset.")
    ] = None,
    settings: Settings = None,
    noise: NoiseLevel = None,
    photons: Photons = 0.0,
    attenuation: Attenuation = 0.02,
    noise_model: NoiseModel = None,
    noise_settings: NoiseSettings = None,
    seed: Seed = 0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard (extra: track).")
    ] = False,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Train a method for a scan; an interrupted run is resumed."""
    from bayescade.pipeline.train import train as run

    answer = run(
        method,
        out,
        case=case,
        geometry_file=geometry,
        images=images,
        noise=noise_of(noise, photons, attenuation, noise_model, noise_settings or []),
        preset=preset,
        start_from=start_from,
        config=config,
        settings=settings or [],
        seed=seed,
        tensorboard=tensorboard,
        device=device,
    )
    if not answer.pop("first"):
        return  # only the first process prints
    line = (
        f"{answer['out']}: {answer['blocks']} blocks of {method} for {answer['case']} "
        f"in {answer['training_seconds']:.1f} s, validation PSNR {answer['validation_psnr']:.2f} dB"
    )
    if answer["start_psnr"] is not None:
        line += f", {answer['validation_psnr'] - answer['start_psnr']:+.2f} dB over {start_from}"
    print_warnings([answer])
    print_answer(answer, [line], json_output)


@app.command(epilog="Example: bayescade pack runs/bdgd-plus-32 --out model --half")
def pack(
    run_folder: Annotated[str, typer.Argument(metavar="RUN", help="A finished run folder.")],
    out: Annotated[str, typer.Option(help="Folder for the model: its weights, manifest.json and card.md.")],
    half: Annotated[bool, typer.Option("--half", help="Weights in half precision: half the file size.")] = False,
    trainable: Annotated[
        bool, typer.Option("--trainable", help="Also store what `train` needs to add blocks to the model.")
    ] = False,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Write a finished run as a model of three small files, to store or to share."""
    from bayescade.pipeline.pack import pack_model

    answer = pack_model(run_folder, out, half=half, trainable=trainable, device=device)
    print_answer(
        answer, [f"wrote {answer['out']}: {answer['blocks']} blocks, {answer['bytes'] / 1e6:.2f} MB"], json_output
    )


@app.command(epilog="Example: bayescade models --json")
def models(json_output: Json = False, device: Device = "auto") -> None:
    """List all models."""
    from bayescade.devices import choose_device
    from bayescade.models import list_models

    choose_device(device)
    rows = list_models()
    print_answer({"models": rows}, [model_line(row) for row in rows], json_output)


def model_line(row: dict[str, Any]) -> str:
    scores = row["scores"]
    quality = f"{scores['psnr']:.2f} / {scores['psnr_shepp_logan']:.2f} dB" if scores else ""
    return f"{row['name']:24} {row['case']:12} {quality:18} {row['about']}"
