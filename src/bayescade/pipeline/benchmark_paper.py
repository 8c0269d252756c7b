"""`bayescade benchmark paper`: Table 1 of the paper on the paper's own test set."""

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bayescade import __version__, methods, plugins
from bayescade.data.noise import add_noise
from bayescade.data.simulate import Scans
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.models import load_model, model_folder, model_scan, shipped_folder
from bayescade.phantoms import ellipses, shepp_logan
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.geometry import geometry_difference
from bayescade.pipeline.cells import cell_file_name, read_cell, write_cell
from bayescade.pipeline.evaluate import score, score_row
from bayescade.pipeline.paper_figures import paper_figures
from bayescade.pipeline.paper_table import NOISE, PAPER_SETTINGS, markdown
from bayescade.pipeline.reconstruct import check_samples
from bayescade.pipeline.scores import bootstrap_interval, mean
from bayescade.progress import Advance, progress
from bayescade.projectors import ray_transform
from bayescade.seeds import check_seed
from bayescade.storage.files import check_folder, make_folder, write_json, write_text
from bayescade.storage.manifest import model_hash, read_manifest


@dataclasses.dataclass(frozen=True)
class CellKey:
    """Everything that a cell of the table depends on."""

    method: str
    case: str
    images: int
    samples: int
    seed: int
    settings: tuple[str, ...] = ()
    model: str | None = None  # hash of the weights and of how they are sampled; None without weights
    version: str = __version__

    def text(self) -> str:
        """The key as JSON text. The file of the cell contains this text, and the name of the file has its hash."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def file_name(self) -> str:
        """The name of the file of the cell."""
        name = self.method.replace("/", "-").strip("-.")
        return cell_file_name(f"{name}_{self.case}", self.text())


def benchmark_paper(
    method_names: Sequence[str] | None = None,  # default: all methods of bayescade
    cases: Sequence[str] | None = None,  # default: the eight cases of the paper
    *,
    images: int = ellipses.PAPER_TEST,
    samples: int = 100,
    seed: int = 0,
    noise_seeds: int = 3,  # number of noise realisations: seeds `seed`, `seed` + 1, ...; a row has the medians
    settings: Sequence[str] = (),  # "key=value", only with one method; they replace settings of the paper
    out: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Computes the rows of the table; with `out`, also writes table.md, table.json and figures.

    Cells that an earlier run stored in `out` are not computed again.
    """
    if not 1 <= noise_seeds <= 1000:
        raise UserError(f"--noise-seeds: expected a whole number from 1 to 1000, got {noise_seeds}")
    check_samples(samples)
    check_seed(seed)
    if out is not None:
        check_folder(out, "table.json", "table.md")
    if not 1 <= images <= ellipses.PAPER_TEST:
        raise UserError(f"--images: the paper's test set has {ellipses.PAPER_TEST} images, got {images}")
    for case in cases or ():
        case_geometry(case)  # raises for an unknown case
    known = plugins.names(methods)
    names = method_names or plugins.our_names(methods)
    for name in names:
        if name not in known and shipped_folder(name) is None and not os.path.isdir(name):
            raise UserError(plugins.unknown("method", name, [*known, "a run folder"]))
    if settings and len(names) != 1:
        raise UserError("--set: expected one method to set, e.g. --methods tv, got several")
    torch_device = choose_device(device)
    folder = make_folder(Path(out) / "cells") if out is not None else None
    truth = torch.cat([ellipses.paper_test(torch_device)[:images], shepp_logan.generate(1, device=torch_device)])
    keys = [
        CellKey(name, case, images, samples, seed, (*PAPER_SETTINGS.get(name, ()), *settings), hash_of(name, case))
        for case in cases or default_cases(names)
        for name in names
    ]
    rows = []
    with progress("table 1", noise_seeds * len(keys) * len(truth)) as advance:
        for key in keys:
            seed_keys = [dataclasses.replace(key, seed=seed + number) for number in range(noise_seeds)]
            rows.append(
                median_row([cell_row(seed_key, truth, folder, torch_device, advance) for seed_key in seed_keys])
            )
    answer = {
        "rows": rows,
        "seed": seed,
        "noise_seeds": noise_seeds,
        "noise": NOISE.settings.relative,
        "data_range": 1.0,
    }
    if out is not None:
        write_text(Path(out) / "table.md", markdown(rows))
        write_json(Path(out) / "table.json", answer)
        models = {(key.method, key.case): (cell_model(key.method, key.case), key.model) for key in keys}
        learned = {cell: (model, digest) for cell, (model, digest) in models.items() if model and digest}
        answer["figures"] = paper_figures(
            learned, Path(out), samples=samples, seed=seed, device=torch_device, settings=list(settings)
        )
        write_json(Path(out) / "table.json", answer)
    return answer


def median_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the rows of several noise seeds, the row with the median PSNR, or with the lower of two medians.

    Its PSNR of the Shepp-Logan phantom is replaced by the median of all rows.
    """
    if any(row["psnr"] is None for row in rows):
        return rows[0]
    middle = (len(rows) - 1) // 2
    row = sorted(rows, key=lambda row: float(row["psnr"]))[middle]
    phantom_psnrs = sorted(float(row["psnr_shepp_logan"]) for row in rows)
    return {**row, "psnr_shepp_logan": phantom_psnrs[middle]}


def default_cases(names: Sequence[str]) -> Sequence[str]:
    """The cases of the paper; if the only name is a trained model, the case of its training."""
    scan = model_scan(names[0]) if len(names) == 1 and names[0] not in plugins.names(methods) else None
    if scan is None:
        return PAPER_CASES
    try:
        case_geometry(scan[0])
    except UserError:
        raise UserError(
            f"{names[0]}: this model is for '{scan[0]}', which is not sparse-N or limited-N; use: bayescade evaluate"
        ) from None
    return [scan[0]]


def cell_model(name: str, case: str) -> str | None:
    """The name of the model for a cell; None if there are no weights for this method and case."""
    if name not in plugins.names(methods):
        scan = model_scan(name)
        return name if scan is None or geometry_difference(scan[1], case_geometry(case)) is None else None
    if plugins.load(methods, name).ANY_GEOMETRY:
        return name
    shipped = f"{name}/{case}"
    return shipped if shipped_folder(shipped) is not None else None


def hash_of(name: str, case: str) -> str | None:
    """The hash of the model for a cell; None without weights."""
    model = cell_model(name, case)
    folder = model_folder(model) if model is not None else None
    return model_hash(read_manifest(folder)) if folder is not None else None


def cell_row(
    key: CellKey, truth: torch.Tensor, folder: Path | None, device: torch.device, advance: Advance
) -> dict[str, Any]:
    """The row of one cell: computed, or read from the file of an earlier run."""
    path = folder / key.file_name() if folder is not None else None
    if path is not None and path.exists():
        advance(len(truth))
        return read_cell(path, key.text(), ("method", "case", "psnr", "status"))
    geometry = case_geometry(key.case)
    model = cell_model(key.method, key.case)
    if model is None:
        advance(len(truth))
        return row_without_weights(key)
    method = load_model(model, geometry, settings=key.settings, device=device)
    clean = ray_transform(geometry, device)(truth)
    # The Shepp-Logan phantom always has the noise of index 100, also with fewer than 100 ellipse images.
    noisy = [add_noise(clean[:-1], NOISE, seed=key.seed)]
    noisy += [add_noise(clean[-1:], NOISE, seed=key.seed, first=ellipses.PAPER_TEST)]
    sinogram = torch.cat(noisy)
    start = time.perf_counter()
    scores, result = score(
        method, Scans(sinogram, truth), geometry, samples=key.samples, seed=key.seed, advance=advance
    )
    ellipse_scores = {name: values[:-1] for name, values in scores.items()}
    row = score_row(key.method, key.case, key.images, ellipse_scores, result.warning)
    row["psnr_shepp_logan"] = mean(scores["psnr"][-1:])
    row["psnr_interval"] = bootstrap_interval(ellipse_scores["psnr"])
    row["seconds_per_image"] = (time.perf_counter() - start) / len(truth)
    row["parameters"] = method.parameters
    weights_folder = model_folder(model)
    row["training_seconds"] = read_manifest(weights_folder).training_seconds if weights_folder is not None else None
    if path is not None:
        write_cell(path, key.text(), row)
    return row


def row_without_weights(key: CellKey) -> dict[str, Any]:
    """The row of a cell for which there are no weights: its scores are None."""
    names = ("psnr", "psnr_shepp_logan", "psnr_interval", "ssim", "rmse", "uncertainty", "warning")
    empty = dict.fromkeys((*names, "seconds_per_image", "parameters", "training_seconds"))
    return {"method": key.method, "case": key.case, "images": key.images, "status": "no weights", **empty}
