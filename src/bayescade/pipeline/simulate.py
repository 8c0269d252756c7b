"""`bayescade simulate`: simulates scans of known images and writes them with the truth."""

from pathlib import Path
from typing import Any

from bayescade.data.noise import Noise
from bayescade.data.scan import ScanWriter
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import scan_batches
from bayescade.data.sources import image_source
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.progress import progress
from bayescade.seeds import check_seed
from bayescade.storage.arrays import check_suffix
from bayescade.storage.files import check_other_file, check_writable


def simulate(
    phantom: str,
    out: str,
    *,
    case: str | None = None,
    geometry_file: str | None = None,
    images: int | None = None,
    noise: Noise | None = None,  # default: 1 % Gaussian noise
    seed: int = 0,
    split: str = "test",
    scanner: Scanner | None = None,  # default: an ideal scanner
    device: str = "auto",
) -> dict[str, Any]:
    """Writes a scan file; gives a summary."""
    check_suffix(out)
    check_writable(out)
    check_other_file(out, phantom, geometry_file)
    check_seed(seed)
    noise = noise or Noise()
    case_name, geometry = choose_geometry(case, geometry_file)
    torch_device = choose_device(device)
    source = image_source(phantom, geometry.image_shape, seed=seed, split=split, device=torch_device)
    count = choose_count(images, source.count)
    scanner = scanner or Scanner()
    batches = scan_batches(source, geometry, noise, seed=seed, count=count, scanner=scanner, device=torch_device)
    with ScanWriter(out, geometry, noise, seed, scanner) as writer, progress("simulating", count) as advance:
        for scans in batches:
            writer.append(scans)
            advance(len(scans.truth))
    return {
        "out": str(Path(out)),
        "phantom": phantom,
        "case": case_name,
        "images": count,
        "views": geometry.views,
        "bins": geometry.bins,
        "noise": noise.describe(),
        "seed": seed,
    }


def choose_count(requested: int | None, available: int | None, default: int = 1) -> int:
    """The number of images: the requested number, otherwise all images of a file, otherwise the default."""
    if requested is None:
        return available or default
    if requested < 1:
        raise UserError(f"--images: expected a number of at least 1, got {requested}")
    if available is not None and requested > available:
        raise UserError(f"--images: the file holds {available} images, {requested} were asked for")
    return requested
