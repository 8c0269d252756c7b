"""Commands: parse, call the pipeline, print. Torch is imported inside the commands, so that `--help` is quick.

Standard output has the answer (with `--json` one JSON object), standard error has progress and errors. Exit code 0: done;
1: failed; 2: wrong usage or input, with one line that says what was expected, what was given and what to type.
"""

import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bayescade import __version__
from bayescade.errors import Failure, UserError

# Typer raises the usage errors of its command-line parser; this is their common base class, for every version of the parser.
_ParserError: Any = typer.BadParameter.__mro__[2]

INTERRUPTED = 130  # typer's exit code of an interruption

app = typer.Typer(
    name="bayescade",
    help="Reconstruct images and their uncertainty from tomographic data.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: bayescade demo",
)
benchmark = typer.Typer(
    help="Measure the quality of methods.", epilog="Example: bayescade benchmark paper --methods fbp"
)
app.add_typer(benchmark, name="benchmark")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected a whole number, got '{text}'.") from None


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"expected a number, got '{text}'.") from None


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Seed = Annotated[int, typer.Option(parser=_whole, metavar="N", help="The same seed gives the same answer.")]
Case = Annotated[str | None, typer.Option(help="A scan by name: sparse-N (N views) or limited-N (N degrees).")]
GeometryFile = Annotated[str | None, typer.Option("--geometry", help="A geometry file (.toml, .json).")]
NoiseLevel = Annotated[
    float | None,
    typer.Option(
        parser=_real,
        metavar="X",
        help="Gaussian noise relative to the mean of the sinogram; by default 0.01, which is 1 %.",
    ),
]
Photons = Annotated[
    float,
    typer.Option(parser=_real, metavar="X", help="Photons per bin: Poisson noise instead of Gaussian. 0: Gaussian."),
]
Attenuation = Annotated[
    float, typer.Option(parser=_real, metavar="X", help="With --photons: attenuation of image value 1 per unit length.")
]
NoiseModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A noise model by its name, instead of --noise and --photons: gaussian, poisson or a plugin.",
    ),
]
NoiseSettings = Annotated[
    list[str] | None,
    typer.Option("--noise-set", help="With --noise-model: a setting of this model, key=value. Repeatable."),
]
Uncertainty = Annotated[
    str,
    typer.Option(metavar="own|bootstrap", help="Error bars: those of the model, or by a bootstrap, for every method."),
]
Samples = Annotated[
    int, typer.Option(parser=_whole, metavar="N", help="Monte-Carlo samples, for methods that use them.")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: key=value. Repeatable.")]


def _version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


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
    _print_answer(answer, lines, json_output)


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
        typer.Option(parser=_whole, metavar="N", help="Number of images; by default 1, or all images of a file."),
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
            parser=_whole,
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
        noise=_noise(noise, photons, attenuation, noise_model, noise_settings or []),
        seed=seed,
        split=split,
        scanner=load_settings(Scanner, overrides=settings),
        device=device,
    )
    line = f"wrote {answer['out']}: {answer['images']} scans of {answer['views']} views x {answer['bins']} bins"
    line += f", {answer['noise']}"
    _print_answer(answer, [line], json_output)


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
        noise=_noise(noise, photons, attenuation, noise_model, noise_settings or []),
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
    _print_warnings([answer])
    _print_answer(answer, [line], json_output)


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
            parser=_whole,
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
    lines += _counted("note", answer["notes"])
    lines += [answer["calibration"]] if answer["calibration"] else []
    _print_warnings([answer])
    _print_answer(answer, lines, json_output)


def _counted(label: str, lists: Sequence[Sequence[str]]) -> list[str]:
    """The texts of all images, at most three, each with the image it is about."""
    texts = [(index, text) for index, items in enumerate(lists) for text in items]
    several = len(lists) > 1
    lines = [f"{label}{f' (image {index})' if several else ''}: {text}" for index, text in texts[:3]]
    return lines + ([f"and {len(texts) - 3} more: see the result file"] if len(texts) > 3 else [])


@app.command(epilog="Example: bayescade calibrate any --geometry geo.toml --images 500")
def calibrate(
    model: Annotated[str, typer.Argument(help="A model with error bars, e.g. any.")],
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[int, typer.Option(parser=_whole, metavar="N", help="Number of simulated scans.")] = 500,
    alpha: Annotated[
        float, typer.Option(parser=_real, metavar="X", help="Share of the pixels that may be outside their intervals.")
    ] = 0.1,
    delta: Annotated[
        float | None,
        typer.Option(
            parser=_real,
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
        int, typer.Option(parser=_whole, metavar="N", help="Monte-Carlo samples, as many as for `reconstruct`.")
    ] = 8,
    seed: Seed = 0,
    settings: Settings = None,
    uncertainty: Uncertainty = "own",
    out: Annotated[str | None, typer.Option(help="Folder for the calibration; by default the cache.")] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Fit intervals with a stated guarantee to simulated scans of a geometry; `reconstruct` uses them."""
    from bayescade.pipeline.calibrate import CalibrationRequest
    from bayescade.pipeline.calibrate import calibrate_model as run

    request = CalibrationRequest(
        model,
        case=case,
        geometry_file=geometry,
        images=images,
        alpha=alpha,
        delta=delta,
        noise=_noise(noise, photons, attenuation, noise_model, noise_settings or []),
        samples=samples,
        seed=seed,
        settings=settings or [],
        uncertainty=uncertainty,
        out=out,
        device=device,
    )
    answer = run(request)
    lines = [f"wrote {answer['out']}: {answer['images']} scans in {answer['seconds']:.0f} s", answer["guarantee"]]
    _print_answer(answer, lines, json_output)


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
        typer.Option(parser=_whole, metavar="N", help="Number of images; by default 100, or all images of a file."),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            parser=_real, metavar="X", help="Gaussian noise; by default the noise of the model's training, or 0.01."
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
        noise=_noise(noise, photons, attenuation, noise_model, noise_settings or []),
        seed=seed,
        samples=samples,
        settings=settings or [],
        calibrate=calibrate,
        uncertainty=uncertainty,
        report=report,
        device=device,
    )
    _print_warnings(answer["rows"])
    lines = _table(answer["rows"])
    lines += [line for row in answer["rows"] for line in _uncertainty(row["uncertainty"])]
    lines += [f"report: {answer['report']}"] if report else []
    _print_answer(answer, lines, json_output)


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
    _print_answer(
        answer, [f"wrote {answer['out']}: {answer['blocks']} blocks, {answer['bytes'] / 1e6:.2f} MB"], json_output
    )


@benchmark.command("paper", epilog="Example: bayescade benchmark paper --methods fbp --out table")
def benchmark_paper(
    methods: Annotated[
        str | None, typer.Option(help="Names, separated by commas; by default all methods of bayescade.")
    ] = None,
    cases: Annotated[
        str | None, typer.Option(help="Names, separated by commas; by default the eight cases of the paper.")
    ] = None,
    images: Annotated[
        int, typer.Option(parser=_whole, metavar="N", help="Number of ellipse images, at most 100.")
    ] = 100,
    samples: Samples = 100,
    seed: Seed = 0,
    noise_seeds: Annotated[
        int,
        typer.Option(
            "--noise-seeds",
            "--draws",
            parser=_whole,
            metavar="N",
            help="Number of noise realisations, with seeds from --seed to --seed + N - 1; the table has the medians.",
        ),
    ] = 3,
    settings: Settings = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder for table.md, table.json and figures; stored cells are not computed again."),
    ] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Compute Table 1 of the paper, on the test set of the paper."""
    from bayescade.pipeline.benchmark_paper import benchmark_paper as run
    from bayescade.pipeline.paper_table import published

    answer = run(
        _names(methods),
        _names(cases),
        images=images,
        samples=samples,
        seed=seed,
        noise_seeds=noise_seeds,
        settings=settings or [],
        out=out,
        device=device,
    )
    _print_warnings(answer["rows"])
    lines = _table(answer["rows"], published())
    lines += [f"wrote {path}" for path in (f"{out}/table.md", f"{out}/table.json", *answer["figures"])] if out else []
    _print_answer(answer, lines, json_output)


@benchmark.command("any", epilog="Example: bayescade benchmark any --model runs/any --out table-any")
def benchmark_any(
    model: Annotated[
        str, typer.Option(help="A model for any scan, e.g. a run folder; or a method such as fbp.")
    ] = "any",
    images: Annotated[int, typer.Option(parser=_whole, metavar="N", help="Number of test images of every row.")] = 20,
    samples: Samples = 10,
    validation_images: Annotated[
        int, typer.Option(parser=_whole, metavar="N", help="Number of scans of every row that choose the weight of TV.")
    ] = 8,
    patients: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Images with values from 0 to 1 (.npy, .npz, .h5) for the rows of patients; the second half is the test.",
        ),
    ] = None,
    rows: Annotated[str, typer.Option(metavar="PART", help="Only rows whose name has this part, e.g. arc-120.")] = "",
    seed: Seed = 0,
    out: Annotated[
        str | None, typer.Option(help="Folder for table.md and table.json; stored cells are not computed again.")
    ] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Compare a model for any scan with total variation and FBP, on many scans and objects."""
    from bayescade.pipeline.any_table import markdown
    from bayescade.pipeline.benchmark_any import AnyBenchmark
    from bayescade.pipeline.benchmark_any import benchmark_any as run

    request = AnyBenchmark(
        model=model,
        images=images,
        samples=samples,
        validation_images=validation_images,
        patients=patients,
        rows=rows,
        seed=seed,
        out=out,
        device=device,
    )
    answer = run(request)
    _print_warnings(answer["rows"])
    lines = [markdown(answer)] + ([f"wrote {out}/table.md", f"wrote {out}/table.json"] if out else [])
    _print_answer(answer, lines, json_output)


@benchmark.command("shift", epilog="Example: bayescade benchmark shift --rows centre --images 10 --out shift")
def benchmark_shift(
    model: Annotated[str, typer.Option(help="A model with error bars.")] = "any",
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[int, typer.Option(parser=_whole, metavar="N", help="Scans of every row.")] = 50,
    calibration_images: Annotated[
        int, typer.Option("--calibration-images", parser=_whole, metavar="N", help="Scans of the calibration.")
    ] = 500,
    samples: Annotated[int, typer.Option(parser=_whole, metavar="N", help="Monte-Carlo samples.")] = 8,
    uncertainty: Uncertainty = "own",
    patients: Annotated[
        str | None, typer.Option(help="Images of patients, values from 0 to 1; the second half is the test.")
    ] = None,
    rows: Annotated[str, typer.Option(metavar="PART", help="Only rows whose name has this part, e.g. centre.")] = "",
    sealed: Annotated[bool, typer.Option("--sealed", help="The rows that nothing was chosen on.")] = False,
    seed: Seed = 0,
    out: Annotated[
        str | None, typer.Option(help="Folder for table.md and table.json; stored rows are not computed again.")
    ] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Does the uncertainty hold outside the training world, or does it warn?"""
    from bayescade.pipeline.benchmark_shift import ShiftBenchmark
    from bayescade.pipeline.benchmark_shift import benchmark_shift as run
    from bayescade.pipeline.shift_table import markdown

    request = ShiftBenchmark(
        model=model,
        case=case,
        geometry_file=geometry,
        images=images,
        calibration_images=calibration_images,
        samples=samples,
        uncertainty=uncertainty,
        patients=patients,
        rows=rows,
        sealed=sealed,
        seed=seed,
        out=out,
        device=device,
    )
    answer = run(request)
    lines = [markdown(answer)] + ([f"wrote {out}/table.md", f"wrote {out}/table.json"] if out else [])
    _print_answer(answer, lines, json_output)


@benchmark.command("sources", epilog="Example: bayescade benchmark sources --images 10 --out sources")
def benchmark_sources(
    model: Annotated[str, typer.Option(help="A model with error bars.")] = "any",
    fewer: Annotated[
        str | None, typer.Option(help="The same model, trained on fewer images, e.g. a run folder.")
    ] = None,
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[int, typer.Option(parser=_whole, metavar="N", help="Scans of every row.")] = 20,
    samples: Annotated[int, typer.Option(parser=_whole, metavar="N", help="Monte-Carlo samples.")] = 8,
    seed: Seed = 0,
    out: Annotated[str | None, typer.Option(help="Folder for table.md and table.json.")] = None,
    json_output: Json = False,
    device: Device = "auto",
) -> None:
    """Does each part of the variance follow its cause: noise, training images, centre of rotation?"""
    from bayescade.pipeline.benchmark_sources import SourcesBenchmark, markdown
    from bayescade.pipeline.benchmark_sources import benchmark_sources as run

    answer = run(SourcesBenchmark(model, fewer, case, geometry, images, samples, seed, out, device))
    lines = [markdown(answer)] + ([f"wrote {out}/table.md", f"wrote {out}/table.json"] if out else [])
    _print_answer(answer, lines, json_output)


@app.command(epilog="Example: bayescade models --json")
def models(json_output: Json = False, device: Device = "auto") -> None:
    """List all models."""
    from bayescade.devices import choose_device
    from bayescade.models import list_models

    choose_device(device)
    rows = list_models()
    _print_answer({"models": rows}, [_model_line(row) for row in rows], json_output)


def _model_line(row: dict[str, Any]) -> str:
    scores = row["scores"]
    quality = f"{scores['psnr']:.2f} / {scores['psnr_shepp_logan']:.2f} dB" if scores else ""
    return f"{row['name']:24} {row['case']:12} {quality:18} {row['about']}"


def _noise(
    relative: float | None, photons: float, attenuation: float, model: str | None, settings: Sequence[str]
) -> Any:
    """The noise that the options select; None if they select none."""
    from bayescade.data.noise import common_noise, noise_model

    common = relative is not None or bool(photons)
    if model is not None and common:
        raise UserError(
            "--noise-model: expected it without --noise and --photons; its settings are given by --noise-set key=value"
        )
    if model is None and settings:
        raise UserError(f"--noise-set {settings[0]}: expected --noise-model as well, e.g. --noise-model poisson")
    if model is not None:
        return noise_model(model, settings)
    return common_noise(0.01 if relative is None else relative, photons, attenuation) if common else None


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _table(rows: Sequence[dict[str, Any]], paper: dict[str, dict[str, tuple[float, float]]] | None = None) -> list[str]:
    name_width = max(12, *(len(row["method"]) + 2 for row in rows))
    lines = [
        f"{'method':{name_width}}{'case':14}{'images':>7}{'PSNR':>9}{'Shepp-Logan':>13}{'SSIM':>8}"
        + ("   paper" if paper else "")
    ]
    for row in rows:
        numbers = (_cell(row["psnr"], 9, 2), _cell(row["psnr_shepp_logan"], 13, 2), _cell(row["ssim"], 8, 4))
        paper_pair = (paper or {}).get(row["method"], {}).get(row["case"])
        paper_text = f"   {paper_pair[0]:.2f} / {paper_pair[1]:.2f}" if paper_pair else ""
        lines.append(f"{row['method']:{name_width}}{row['case']:14}{row['images']:>7}{''.join(numbers)}{paper_text}")
    return lines


def _uncertainty(scores: dict[str, Any] | None) -> list[str]:
    if scores is None:
        return []
    if scores["nll"] is None or None in scores["coverage"].values():
        return ["the uncertainty cannot be scored: some of its values are not finite numbers"]
    coverages = ", ".join(f"{float(level):.0%} -> {coverage:.1%}" for level, coverage in scores["coverage"].items())
    return [
        f"coverage of intervals: {coverages}",
        f"NLL {scores['nll']:.3f}, CRPS {scores['crps']:.5f}, epistemic share {scores['epistemic_share']:.2%}",
    ]


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def _print_warnings(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if row.get("warning"):
            name = " ".join(row[key] for key in ("model", "method", "case", "name") if key in row)
            print(f"bayescade: warning: {name}: {row['warning']}", file=sys.stderr)


def _print_answer(answer: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    print(json.dumps(answer, allow_nan=False) if as_json else "\n".join(lines))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], prog_name="bayescade", standalone_mode=False) or 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return int(code)
    except UserError as error:
        return _fail(str(error), 2)
    except Failure as error:
        return _fail(str(error), 1)
    except _ParserError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bayescade"
        return _fail(f"{error.format_message()} See: {command} --help", 2)
    except OSError as error:
        if _debugging():
            raise
        unusable = error.errno in (errno.EACCES, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
        return _fail(f"{error.filename}: cannot be used ({error.strerror})", 2 if unusable else 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted; no file was left half-written", 1)
    except Exception as error:
        if _debugging():
            raise
        return _fail(f"failed: {type(error).__name__}: {error} (BAYESCADE_DEBUG=1 shows where)", 1)


def _debugging() -> bool:
    return os.environ.get("BAYESCADE_DEBUG", "0") != "0"


def _fail(message: str, code: int) -> int:
    print(f"bayescade: {' '.join(message.split())}", file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the command."""
    from bayescade.progress import show_progress

    show_progress()
    # A stop by a scheduler raises KeyboardInterrupt, like Ctrl-C, so that files are cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run())
