"""Panels of images side by side, with units, colour bars and shared scales."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from bayescade.results import Reconstruction
from bayescade.storage.files import replacing

# Panels of one scale share colour map and limits: the parts of a variance can be compared.
Scale = Literal["value", "error", "std", "ratio"]
COLOURS: dict[Scale, str] = {"value": "gray", "error": "RdBu_r", "std": "magma", "ratio": "cividis"}
UNITLESS = ("ratio",)
LARGEST_RATIO = 5.0  # |error| / std at the end of its colour bar


@dataclasses.dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    image: NDArray[Any]  # (height, width)
    scale: Scale = "value"


def reconstruction_panels(result: Reconstruction, index: int = 0) -> list[Panel]:
    """Truth, reconstruction, error and standard deviations of one image; what the result does not have is left out."""
    image = _array(result.image, index)
    panels = [Panel(result.model if "/" in result.model else result.model.upper(), image)]
    if result.truth is not None:
        truth = _array(result.truth, index)
        panels = [Panel("truth", truth), *panels, Panel("error", image - truth, "error")]
    if result.aleatoric is not None:
        panels.append(Panel("aleatoric std (data)", _array(result.aleatoric.sqrt(), index), "std"))
    if result.epistemic is not None:
        panels.append(Panel("epistemic std (model)", _array(result.epistemic.sqrt(), index), "std"))
    if result.geometry_variance is not None:
        panels.append(Panel("geometry std (centre)", _array(result.geometry_variance.sqrt(), index), "std"))
    return panels


def ratio_panel(result: Reconstruction, index: int = 0) -> Panel | None:
    """|error| / standard deviation of one image; None without truth or variances."""
    if result.truth is None or result.aleatoric is None:
        return None
    ratio = (result.image - result.truth.to(result.image)).abs() / result.std.clamp_min(1e-30)
    return Panel("|error| / std", _array(ratio, index), "ratio")


def _array(batch: Tensor, index: int) -> NDArray[Any]:
    array: NDArray[Any] = batch[index, 0].detach().cpu().numpy()
    return array


def draw_panels(
    rows: Sequence[Sequence[Panel | None]],  # None: an empty panel
    path: Path | str,
    geometry: str | None,  # JSON text with the size of a pixel; None: pixels of size 1
    title: str = "",
    unit: str = "pixel",  # unit of the lengths in the geometry
    value_unit: str = "",  # unit of the image values, for the colour bars
) -> None:
    """Writes the rows of panels as a PNG file; x to the right, y up, in the units of the geometry."""
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(3.6 * columns, 3.2 * len(rows) + (0.4 if title else 0)), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=11)
    limits = _limits([panel for row in rows for panel in row if panel is not None])
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for row, row_axes in zip(rows, axes, strict=True):
        for column, axis in enumerate(row_axes):
            panel = row[column] if column < len(row) else None
            if panel is None:
                axis.set_visible(False)
                continue
            low, high = limits[panel.scale]
            drawn = axis.imshow(
                panel.image.T,
                origin="lower",
                cmap=COLOURS[panel.scale],
                vmin=low,
                vmax=high,
                extent=_extent(panel.image, geometry),
            )
            axis.set_title(panel.title, fontsize=10)
            axis.set_xlabel(f"x ({unit})", fontsize=8)
            axis.set_ylabel(f"y ({unit})", fontsize=8)
            axis.tick_params(labelsize=7)
            # A pointed end: there are values beyond the end of the colour bar.
            beyond = (bool((panel.image < low).any()), bool((panel.image > high).any()))
            extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[
                beyond
            ]
            bar = figure.colorbar(drawn, ax=axis, shrink=0.85, extend=extend)
            bar.ax.tick_params(labelsize=7)
            if value_unit and panel.scale not in UNITLESS:
                bar.set_label(value_unit, fontsize=8)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=130)


def _limits(panels: list[Panel]) -> dict[Scale, tuple[float, float]]:
    """Colour limits of each scale: those of the first panel for values, symmetric for errors, from 0 for stds."""
    limits: dict[Scale, tuple[float, float]] = {}
    values = [panel.image for panel in panels if panel.scale == "value"]
    if values:
        limits["value"] = (float(values[0].min()), max(float(values[0].max()), float(values[0].min()) + 1e-12))
    errors = [panel.image for panel in panels if panel.scale == "error"]
    if errors:
        largest = max(float(np.quantile(abs(image), 0.995)) for image in errors) or 1e-12
        limits["error"] = (-largest, largest)
    stds = [panel.image for panel in panels if panel.scale == "std"]
    if stds:
        limits["std"] = (0.0, max(float(np.quantile(image, 0.999)) for image in stds) or 1e-12)
    limits["ratio"] = (0.0, LARGEST_RATIO)
    return limits


def _extent(image: np.ndarray, geometry: str | None) -> tuple[float, float, float, float]:
    pixel_size = json.loads(geometry)["pixel_size"] if geometry is not None else 1.0
    half_x, half_y = (size * pixel_size / 2 for size in image.shape)
    return (-half_x, half_x, -half_y, half_y)
