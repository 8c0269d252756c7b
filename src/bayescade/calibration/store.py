"""Where calibrations are stored: in the folder of the model (shipped ones), and in the user's cache.

A file has the key of the calibration (model, geometry, noise, samples, ...) and the calibration. It is written completely
or not at all, and has a checksum against damage (not against tampering).
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from bayescade.calibration.calibrate import Calibration, calibrate, calibrate_data
from bayescade.calibration.examine import Examiner
from bayescade.calibration.simulated import ScanKind, steps_of
from bayescade.data.cache import cache_folder
from bayescade.errors import Failure, UserError
from bayescade.models import ANY, ANY_MODEL, model_folder
from bayescade.progress import progress
from bayescade.storage.files import make_folder, read_text, write_json
from bayescade.storage.manifest import model_hash, read_manifest
from bayescade.uncertainty.intervals import LEVEL

FORMAT = 1  # increase it when the same key gives another calibration
FOLDER = "calibrations"
BOOTSTRAP = "bootstrap"
DIGITS = 6  # of lengths and angles in a key: rounding does not make another calibration
OVERHEAD = 15.0  # seconds: simulation, and the tests of the data alone


def key_of(examiner: Examiner, kind: ScanKind, delta: float | None = None, level: float = LEVEL) -> dict[str, Any]:
    """Everything that a calibration depends on, but the number of its images and its seed."""
    folder = model_folder(examiner.name)
    return {
        **data_key(examiner, kind),
        "model": ANY_MODEL if examiner.name == ANY else examiner.name,
        "weights": model_hash(read_manifest(folder)) if folder is not None else None,
        "settings": list(examiner.settings),
        "passes": examiner.for_calibration().samples,
        "find": examiner.find,
        "delta": delta,
        "level": level,
        **({"uncertainty": BOOTSTRAP} if examiner.bootstrap is not None else {}),
    }


def data_key(examiner: Examiner, kind: ScanKind) -> dict[str, Any]:
    """Everything that the tests of the data alone depend on: no model."""
    largest = None
    if kind.needs_scale and kind.largest is not None:
        largest = steps_of(kind.largest)
    return {
        "format": FORMAT,
        "geometry": rounded(json.loads(kind.geometry.to_json())),
        "noise": kind.noise.to_json(),
        "largest": largest,
        "stated_std": examiner.stated_std if math.isfinite(examiner.stated_std) else None,
    }


def rounded(value: Any) -> Any:
    """JSON values with their numbers rounded."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def save(key: dict[str, Any], calibration: Calibration, folder: Path | None = None) -> Path:
    """Writes a calibration into the cache, or into a folder."""
    folder = folder or cache_folder() / FOLDER
    values = calibration.to_json()
    path = folder / f"{digest(key)[:24]}-{images_of(calibration)}.json"
    make_folder(folder)
    write_json(path, {"key": key, "checksum": digest(values), "calibration": values})
    return path


def images_of(calibration: Calibration) -> int:
    """How many scans were reconstructed for a calibration."""
    return calibration.intervals.images if calibration.intervals is not None else 0


def find(key: dict[str, Any], least_images: int = 0) -> Calibration | None:
    """The stored calibration of that key with the most images; None if there is none, or only damaged ones."""
    stored = [calibration for path in candidates(key) if (calibration := read(path, key)) is not None]
    enough = [calibration for calibration in stored if images_of(calibration) >= least_images]
    return max(enough, key=images_of, default=None)


def candidates(key: dict[str, Any]) -> Iterator[Path]:
    """Files that may hold the calibration of a key."""
    folders = [cache_folder() / FOLDER]
    model = model_folder(key["model"]) if "model" in key else None
    if model is not None:
        folders.append(model / FOLDER)
    for folder in folders:
        yield from sorted(folder.glob(f"{digest(key)[:24]}-*.json"))


def read(path: Path, key: dict[str, Any]) -> Calibration | None:
    """A stored calibration; None if the file is damaged or holds another key: then it is made again."""
    try:
        values = json.loads(read_text(path))
        if values["key"] != json.loads(json.dumps(key)) or values["checksum"] != digest(values["calibration"]):
            return None
        return Calibration.from_json(values["calibration"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def calibration_for(
    examiner: Examiner,
    kind: ScanKind,
    example: Tensor,  # (1, 1, views, bins): one of the scans; it says how long a calibration takes
    *,
    images: int,
    at_most: float = math.inf,  # seconds
    say: Callable[[str], None],
) -> Calibration:
    """The stored calibration with at least as many images, or a new one, which is stored; the examiner gets its centre.

    It has no intervals if they would take too long, or if the model has no variances.
    """
    calibration = interval_calibration(examiner, kind, example, images, at_most, say) if examiner.has_variance else None
    if calibration is None:
        key = data_key(examiner, kind)
        calibration = find(key)
        if calibration is None:
            say("simulating good scans of this geometry and noise, to which this one is compared: some seconds, once")
            calibration = calibrate_data(examiner, kind)
            save_if_possible(key, calibration, say)
    examiner.errors = calibration.errors
    return calibration


def interval_calibration(
    examiner: Examiner, kind: ScanKind, example: Tensor, images: int, at_most: float, say: Callable[[str], None]
) -> Calibration | None:
    """The calibration of `calibration_for` with intervals; None if a new one would take too long."""
    key = key_of(examiner, kind)
    calibration = find(key, images)
    if calibration is not None:
        return calibration
    worker = examiner.for_calibration()
    start = time.perf_counter()
    worker(example[:1])
    seconds = (time.perf_counter() - start) * images + OVERHEAD
    if seconds > at_most:
        say(
            f"calibrated intervals for this geometry would take about {seconds:.0f} s and are left out; "
            f"to have them: --calibrate {images}"
        )
        return None
    say(f"calibrating for this geometry and noise: {images} simulated scans, about {seconds:.0f} s, once")
    with progress("calibrating", images) as advance:
        calibration = calibrate(worker, kind, images=images, advance=advance)
    save_if_possible(key, calibration, say)
    return calibration


def save_if_possible(key: dict[str, Any], calibration: Calibration, say: Callable[[str], None]) -> None:
    """Writes a calibration into the cache; without a cache it is made again the next time."""
    try:
        save(key, calibration)
    except (UserError, Failure, OSError) as error:
        say(f"the calibration could not be stored and will be made again: {error}")


def digest(values: Any) -> str:
    """A hash of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, allow_nan=False).encode()).hexdigest()
