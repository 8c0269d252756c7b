"""Options that several commands have, and what they select."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bayescade.errors import UserError


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected a whole number, got '{text}'.") from None


def real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"expected a number, got '{text}'.") from None


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Seed = Annotated[int, typer.Option(parser=whole, metavar="N", help="The same seed gives the same answer.")]
Case = Annotated[str | None, typer.Option(help="A scan by name: sparse-N (N views) or limited-N (N degrees).")]
GeometryFile = Annotated[str | None, typer.Option("--geometry", help="A geometry file (.toml, .json).")]
NoiseLevel = Annotated[
    float | None,
    typer.Option(
        parser=real,
        metavar="X",
        help="Gaussian noise relative to the mean of the sinogram; by default 0.01, which is 1 %.",
    ),
]
Photons = Annotated[
    float,
    typer.Option(parser=real, metavar="X", help="Photons per bin: Poisson noise instead of Gaussian. 0: Gaussian."),
]
Attenuation = Annotated[
    float, typer.Option(parser=real, metavar="X", help="With --photons: attenuation of image value 1 per unit length.")
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
    int, typer.Option(parser=whole, metavar="N", help="Monte-Carlo samples, for methods that use them.")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: key=value. Repeatable.")]


def noise_of(
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


def names_of(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
