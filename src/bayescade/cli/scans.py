"""Commands for scans: simulate, reconstruct, calibrate and evaluate them, and the demo."""

from typing import Annotated

import typer

from bayescade.cli.answers import counted, print_answer, print_warnings, table, uncertainty_lines
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
    Samples,
    Seed,
    Settings,
    Uncertainty,
    noise_of,
    real,
    whole,
)


@app.command(epilog="Example: bayescade demo --out demo")
def demo(
    out: Annotated[str, typer.Option(help="Folder for reconstruction.h5 and figure.png.")] = "demo",
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Reconstruct a phantom from a fan-beam scan of 50 views; writes a result file and a figure."""
    from bayescade.pipeline.demo import demo as run

    answer = run(out, device)
    lines = [
        f"{answer['model']}: PSNR {answer['psnr']:.2f} dB (FBP {answer['psnr_fbp']:.2f} dB), SSIM {answer['ssim']:.4f}, "
        f"{answer['seconds']:.1f} s",
        f"calibrated 90 % intervals cover {answer['coverage_calibrated']:.1%} of the pixels; "
        f"{answer['epistemic_share']:.2%} of the variance is epistemic",
        *(f"note: {note}" for note in answer["notes"]),
        *(f"warning: {warning['message']}" for warning in answer["warnings"]),
        *(["no warning: the data look like those of good scans"] if not answer["warnings"] else []),
        f"wrote {' and '.join(answer['files'])}",
    ]
    print_answer(answer, lines, json_output)


@app.command(epilog="Example: bayescade simulate --phantom ellipses --case sparse-32 --images 5 -o scan.h5")
def simulate(
    phantom: Annotated[
        str,
        typer.Option(
            help="A phantom (ellipses, inserts, lines, shepp-logan, ...; docs/simulation.md) or an image file."
        ),
    ],
    out: Annotated[str, typer.Option("-o", "--out", help="The scan file: .h5 or .npz.")],
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="N", help="Number of images; by default 1, or all images of a file."),
    ] = None,
    noise: NoiseLevel = None,
    photons: Photons = 0.0,
    attenuation: Attenuation = 0.02,
    noise_model: NoiseModel = None,
    noise_settings: NoiseSettings = None,
    seed: Seed = 0,
    split: Annotated[str, typer.Option(help="train, validation, calibration or test.")] = "test",
    grid_factor: Annotated[
        int,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Split every pixel into N x N pixels for the simulation; 2 avoids an inverse crime.",
        ),
    ] = 1,
    scanner_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--scanner-set",
            metavar="KEY=VALUE",
            help="An error of the scanner, e.g. centre_error=0.1 (bins), angle_error=0.1, blur=1, dead_bins=2; repeatable.",
        ),
    ] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Simulate scans of phantoms or of your images; the scan file also has the true images."""
    from bayescade.config import load_settings
    from bayescade.data.scanner import Scanner
    from bayescade.pipeline.simulate import simulate as run

    settings = [f"grid_factor={grid_factor}", *(scanner_settings or [])]
    answer = run(
        phantom,
        out,
        case=case,
        geometry_file=geometry,
        images=images,
        noise=noise_of(noise, photons, attenuation, noise_model, noise_settings or []),
        seed=seed,
        split=split,
        scanner=load_settings(Scanner, overrides=settings),
        device=device,
    )
    line = f"wrote {answer['out']}: {answer['images']} scans of {answer['views']} views x {answer['bins']} bins"
    line += f", {answer['noise']}"
    print_answer(answer, [line], json_output)


@app.command(epilog="Example: bayescade reconstruct scan.h5 -o result.h5")
def reconstruct(
    scan: Annotated[str, typer.Argument(help="A scan file: .h5 or .npz.")],
    out: Annotated[str, typer.Option("-o", "--out", help="The result file: .h5 or .npz.")],
    model: Annotated[
        str, typer.Option(help="A model's name ('bayescade models' lists them); any works for every scan.")
    ] = "any",
    samples: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Monte-Carlo samples; by default 8 for any, 20 for a bootstrap, 100 for other models.",
        ),
    ] = None,
    seed: Seed = 0,
    settings: Settings = None,
    center: Annotated[
        str,
        typer.Option(
            metavar="auto|stated|BIN",
            help="The centre of rotation: auto checks and corrects that of the file; or the bin of the centre.",
        ),
    ] = "auto",
    calibrate: Annotated[
        str,
        typer.Option(
            metavar="auto|off|N",
            help="Calibrated intervals: auto takes a stored calibration or makes one; N: with at least N scans.",
        ),
    ] = "auto",
    uncertainty: Uncertainty = "own",
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Reconstruct all scans of a file, with calibrated intervals and warnings."""
    from bayescade.pipeline.reconstruct import Request
    from bayescade.pipeline.reconstruct import reconstruct as run

    request = Request(model, samples, seed, settings or [], center, calibrate, uncertainty, device)
    answer = run(scan, out, request)
    line = f"wrote {answer['out']}: {answer['images']} images by {model} in {answer['seconds']:.1f} s"
    if answer.get("psnr") is not None:
        line += f", PSNR {answer['psnr']:.2f} dB"
    lines = [line]
    if answer["dedicated"] is not None:
        lines.append(f"{answer['dedicated']} was trained for this geometry alone: --model {answer['dedicated']}")
    lines += counted("note", answer["notes"])
    lines += [answer["calibration"]] if answer["calibration"] else []
    print_warnings([answer])
    print_answer(answer, lines, json_output)


@app.command(epilog="Example: bayescade calibrate any --geometry geo.toml --images 500")
def calibrate(
    model: Annotated[str, typer.Argument(help="A model with error bars, e.g. any.")],
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[int, typer.Option(parser=whole, metavar="N", help="Number of simulated scans.")] = 500,
    alpha: Annotated[
        float, typer.Option(parser=real, metavar="X", help="Share of the pixels that may be outside their intervals.")
    ] = 0.1,
    delta: Annotated[
        float | None,
        typer.Option(
            parser=real,
            metavar="X",
            help="Intervals hold with probability 1 - X over calibrations; without it on average.",
        ),
    ] = None,
    noise: NoiseLevel = None,
    photons: Photons = 0.0,
    attenuation: Attenuation = 0.02,
    noise_model: NoiseModel = None,
    noise_settings: NoiseSettings = None,
    samples: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="N", help="Monte-Carlo samples; by default as many as for `reconstruct`."),
    ] = None,
    largest: Annotated[
        float | None,
        typer.Option(parser=real, metavar="X", help="With --photons: the largest line integral of the scans."),
    ] = None,
    seed: Seed = 0,
    settings: Settings = None,
    uncertainty: Uncertainty = "own",
    out: Annotated[str | None, typer.Option(help="Folder for the calibration; by default the cache.")] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Fit intervals with a stated guarantee to simulated scans of a geometry.

    `reconstruct` uses those of 90 % on average (without --alpha and --delta); others are for reading.
    """
    from bayescade.pipeline.calibrate import CalibrationRequest
    from bayescade.pipeline.calibrate import calibrate_model as run

    request = CalibrationRequest(
        model,
        case=case,
        geometry_file=geometry,
        images=images,
        alpha=alpha,
        delta=delta,
        noise=noise_of(noise, photons, attenuation, noise_model, noise_settings or []),
        samples=samples,
        largest=largest,
        seed=seed,
        settings=settings or [],
        uncertainty=uncertainty,
        out=out,
        device=device,
    )
    answer = run(request)
    lines = [f"wrote {answer['out']}: {answer['images']} scans in {answer['seconds']:.0f} s", answer["guarantee"]]
    print_answer(answer, lines, json_output)


@app.command(epilog="Example: bayescade evaluate fbp --case sparse-32 --images 20 --report report")
def evaluate(
    model: Annotated[str, typer.Argument(help="A model's name; 'bayescade models' lists them.")],
    case: Case = None,
    geometry: GeometryFile = None,
    truth: Annotated[
        str | None, typer.Option(help="Images to scan instead of new ellipse images (.npy, .npz, .h5).")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="N", help="Number of images; by default 100, or all images of a file."),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            parser=real, metavar="X", help="Gaussian noise; by default the noise of the model's training, or 0.01."
        ),
    ] = None,
    photons: Photons = 0.0,
    attenuation: Attenuation = 0.02,
    noise_model: NoiseModel = None,
    noise_settings: NoiseSettings = None,
    seed: Seed = 0,
    samples: Samples = 100,
    settings: Settings = None,
    calibrate: Annotated[
        str,
        typer.Option(metavar="off|auto|N", help="Calibrated intervals and warnings, as those of `reconstruct`."),
    ] = "off",
    uncertainty: Uncertainty = "own",
    report: Annotated[str | None, typer.Option(help="Folder for a page with scores and pictures.")] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Simulate scans of test images, reconstruct and score them."""
    from bayescade.pipeline.evaluate import evaluate as run

    answer = run(
        model,
        case=case,
        geometry_file=geometry,
        truth=truth,
        images=images,
        noise=noise_of(noise, photons, attenuation, noise_model, noise_settings or []),
        seed=seed,
        samples=samples,
        settings=settings or [],
        calibrate=calibrate,
        uncertainty=uncertainty,
        report=report,
        device=device,
    )
    print_warnings(answer["rows"])
    lines = table(answer["rows"])
    lines += [line for row in answer["rows"] for line in uncertainty_lines(row["uncertainty"])]
    lines += [f"report: {answer['report']}"] if report else []
    print_answer(answer, lines, json_output)
