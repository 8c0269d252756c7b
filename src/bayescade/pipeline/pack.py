"""`bayescade pack`: writes a finished run as a model of three small files, with scores if its scan is in the paper."""

import dataclasses
from pathlib import Path
from typing import Any

from bayescade.data.noise import noise_from_json
from bayescade.errors import UserError
from bayescade.models import load_model
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.geometry import geometry_difference, geometry_from_json
from bayescade.pipeline.benchmark_paper import benchmark_paper
from bayescade.pipeline.paper_table import NOISE
from bayescade.storage.card import write_card
from bayescade.storage.files import write_json, write_text
from bayescade.storage.manifest import MANIFEST, Manifest, read_manifest, to_json
from bayescade.storage.packing import pack
from bayescade.storage.runs import CARD

SAMPLES = 10  # Monte-Carlo samples for the scores


def pack_model(
    run: str, out: str, *, half: bool = False, trainable: bool = False, device: str = "auto"
) -> dict[str, Any]:
    """Writes the model and its card, with the scores of the packed weights for a scan of the paper; gives a summary."""
    if not Path(run).is_dir():
        raise UserError(f"{run}: expected a run folder, but there is no such folder; train one with: bayescade train")
    if read_manifest(run).geometry is not None:
        load_model(str(Path(run).resolve()))  # raises for a damaged model
    manifest = pack(run, out, half=half, trainable=trainable)
    folder = Path(out)
    noise = noise_from_json(manifest.settings["noise"]) if manifest.settings["noise"] else None
    if noise == NOISE and is_paper_scan(manifest):
        model = str(folder.resolve())
        row = benchmark_paper([model], [manifest.case], samples=SAMPLES, noise_seeds=1, device=device)["rows"][0]
        names = ("psnr", "psnr_shepp_logan", "ssim", "uncertainty")
        scores = {**{name: row[name] for name in names}, "samples": SAMPLES, "seed": 0}
        manifest = dataclasses.replace(manifest, scores=scores)
    write_text(folder / CARD, write_card(manifest, noise.describe() if noise is not None else ""))
    write_json(folder / MANIFEST, to_json(manifest))
    return {
        "out": out,
        "blocks": len(manifest.blocks),
        "bytes": (folder / manifest.blocks[0].file).stat().st_size,
        "scores": manifest.scores,
    }


def is_paper_scan(manifest: Manifest) -> bool:
    """Whether a model was trained for a scan of the paper."""
    if manifest.case not in PAPER_CASES or manifest.geometry is None:
        return False
    return geometry_difference(case_geometry(manifest.case), geometry_from_json(manifest.geometry)) is None
