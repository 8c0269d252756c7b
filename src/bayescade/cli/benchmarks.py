"""Commands that measure the quality of methods: `bayescade benchmark ...`."""

from typing import Annotated

import typer

from bayescade.cli.answers import print_answer, print_warnings, table
from bayescade.cli.app import benchmark
from bayescade.cli.options import (
    Case,
    Device,
    GeometryFile,
    Json,
    Samples,
    Seed,
    Settings,
    Uncertainty,
    names_of,
    whole,
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
        int, typer.Option(parser=whole, metavar="N", help="Number of ellipse images, at most 100.")
    ] = 100,
    samples: Samples = 100,
    seed: Seed = 0,
    noise_seeds: Annotated[
        int,
        typer.Option(
            "--noise-seeds",
            "--draws",
            parser=whole,
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
        names_of(methods),
        names_of(cases),
        images=images,
        samples=samples,
        seed=seed,
        noise_seeds=noise_seeds,
        settings=settings or [],
        out=out,
        device=device,
    )
    print_warnings(answer["rows"])
    lines = table(answer["rows"], published())
    lines += [f"wrote {path}" for path in (f"{out}/table.md", f"{out}/table.json", *answer["figures"])] if out else []
    print_answer(answer, lines, json_output)


@benchmark.command("any", epilog="Example: bayescade benchmark any --model runs/any --out table-any")
def benchmark_any(
    model: Annotated[
        str, typer.Option(help="A model for any scan, e.g. a run folder; or a method such as fbp.")
    ] = "any",
    images: Annotated[int, typer.Option(parser=whole, metavar="N", help="Number of test images of every row.")] = 20,
    samples: Samples = 10,
    validation_images: Annotated[
        int, typer.Option(parser=whole, metavar="N", help="Number of scans of every row that choose the weight of TV.")
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
    print_warnings(answer["rows"])
    lines = [markdown(answer)] + ([f"wrote {out}/table.md", f"wrote {out}/table.json"] if out else [])
    print_answer(answer, lines, json_output)


@benchmark.command("shift", epilog="Example: bayescade benchmark shift --rows centre --images 10 --out shift")
def benchmark_shift(
    model: Annotated[str, typer.Option(help="A model with error bars.")] = "any",
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[int, typer.Option(parser=whole, metavar="N", help="Scans of every row.")] = 50,
    calibration_images: Annotated[
        int, typer.Option("--calibration-images", parser=whole, metavar="N", help="Scans of the calibration.")
    ] = 500,
    samples: Annotated[int, typer.Option(parser=whole, metavar="N", help="Monte-Carlo samples.")] = 8,
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
    print_answer(answer, lines, json_output)


@benchmark.command("sources", epilog="Example: bayescade benchmark sources --images 10 --out sources")
def benchmark_sources(
    model: Annotated[str, typer.Option(help="A model with error bars.")] = "any",
    fewer: Annotated[
        str | None, typer.Option(help="The same model, trained on fewer images, e.g. a run folder.")
    ] = None,
    case: Case = None,
    geometry: GeometryFile = None,
    images: Annotated[int, typer.Option(parser=whole, metavar="N", help="Scans of every row.")] = 20,
    samples: Annotated[int, typer.Option(parser=whole, metavar="N", help="Monte-Carlo samples.")] = 8,
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
    print_answer(answer, lines, json_output)
