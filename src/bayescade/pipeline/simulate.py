"""`bayescade simulate`: scans with truth."""

from pathlib import Path
from typing import Any

from bayescade.data.scan import ScanWriter
from bayescade.data.simulate import Noise, check_supersample, scan_batches
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
    noise: Noise,
    seed: int = 0,
    split: str = "test",
    supersample: int = 1,
    device: str = "auto",
) -> dict[str, Any]:
    """Writes a scan file; says what is in it."""
    check_suffix(out)
    check_writable(out)
    check_other_file(out, phantom, geometry_file)
    check_supersample(supersample)
    check_seed(seed)
    name, geometry = choose_geometry(case, geometry_file)
    place = choose_device(device)
    source = image_source(phantom, geometry.image_shape, seed=seed, split=split, device=place)
    count = choose_count(images, source.count)
    batches = scan_batches(source, geometry, noise, seed=seed, count=count, supersample=supersample, device=place)
    with ScanWriter(out, geometry, noise, seed) as writer, progress("simulating", count) as advance:
        for scans in batches:
            writer.append(scans)
            advance(len(scans.truth))
    return {
        "out": str(Path(out)),
        "phantom": phantom,
        "case": name,
        "images": count,
        "views": geometry.views,
        "bins": geometry.bins,
        "seed": seed,
    }


def choose_count(asked: int | None, available: int | None, default: int = 1) -> int:
    """How many images: as many as asked for, or all of a file, or the default."""
    if asked is None:
        return available or default
    if asked < 1:
        raise UserError(f"--images: expected a number of at least 1, got {asked}")
    if available is not None and asked > available:
        raise UserError(f"--images: the file holds {available} images, {asked} were asked for")
    return asked
