"""`bayescade pack`: a finished run as a model of three small files, with its scores on the paper's test set if it has a place
there."""

from pathlib import Path
from typing import Any

from bayescade.errors import UserError
from bayescade.models import load_model
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.pipeline.benchmark_paper import benchmark_paper
from bayescade.pipeline.card import write_card
from bayescade.pipeline.paper_table import NOISE
from bayescade.storage.files import write_json, write_text
from bayescade.storage.packing import pack
from bayescade.storage.runs import CARD, MANIFEST

SAMPLES = 10


def pack_model(run: str, out: str, *, half: bool = False, device: str = "auto") -> dict[str, Any]:
    """Writes the model; its card has the scores of the weights as they are packed."""
    if not Path(run).is_dir():
        raise UserError(f"{run}: expected a run folder, but there is no such folder; train one with: bayescade train")
    load_model(str(Path(run).resolve()))  # what cannot be used is not passed on
    manifest = pack(run, out, half=half)
    folder = Path(out)
    case = manifest["case"]
    noise = manifest["settings"]["noise"]
    known = case in PAPER_CASES and manifest["geometry"] == case_geometry(case).to_json()
    if known and not noise["photons"] and noise["relative"] == NOISE.relative:
        row = benchmark_paper([str(folder.resolve())], [case], samples=SAMPLES, draws=1, device=device)["rows"][0]
        names = ("psnr", "psnr_shepp_logan", "ssim", "uncertainty")
        manifest["scores"] = {**{name: row[name] for name in names}, "samples": SAMPLES, "seed": 0}
    write_text(folder / CARD, write_card(manifest))
    write_json(folder / MANIFEST, manifest)
    return {
        "out": out,
        "blocks": len(manifest["blocks"]),
        "bytes": (folder / manifest["blocks"][0]["file"]).stat().st_size,
        "scores": manifest.get("scores"),
    }
