"""From an examined scan to what a user gets: calibrated intervals, warnings with causes, and notes."""

import dataclasses
import json
import math

from torch import Tensor

from bayescade.calibration.calibrate import Calibration
from bayescade.calibration.examine import Examined
from bayescade.consistency.causes import (
    Caution,
    caution_of,
    caution_of_centre,
    caution_of_kept_centre,
    caution_of_values,
)
from bayescade.consistency.values import looks_like
from bayescade.results import Reconstruction
from bayescade.uncertainty.intervals import LEVELS

NOT_CALIBRATED = "the variances are not calibrated for this scan; calibrate: bayescade calibrate {model}"


def assessed(
    examined: Examined,
    sinogram: Tensor,  # (1, 1, views, bins)
    calibration: Calibration | None,
) -> Reconstruction:
    """The result of one scan with all that is known about how far to trust it."""
    result = examined.result
    cautions = cautions_of(examined, sinogram, calibration)
    sentence, regions = None, None
    if result.aleatoric is not None and result.epistemic is not None:
        sentence = NOT_CALIBRATED.format(model=result.model)
        if calibration is not None and calibration.intervals is not None:
            result = calibration.intervals.calibrated(result)
            sentence = calibration.intervals.guarantee()
            regions = json.dumps({"levels": LEVELS, "sizes": calibration.intervals.to_json()["regions"]})
    texts = [caution.sentence() for caution in cautions]
    return dataclasses.replace(
        result,
        calibration=sentence,
        region_calibration=regions,
        warning="; ".join([*([result.warning] if result.warning else []), *texts]) or None,
        warnings=[[caution.to_json() for caution in cautions]],
        notes=[notes_of(examined)],
    )


def cautions_of(examined: Examined, sinogram: Tensor, calibration: Calibration | None) -> list[Caution]:
    """All warnings about a scan."""
    cautions = []
    kind = looks_like(sinogram)
    if kind is not None:
        cautions.append(caution_of_values(kind))
    if not bool(examined.centre.known.all()):
        cautions.append(caution_of_centre(float(examined.centre.distance)))
    elif contradicted(examined) and not examined.corrected:
        cautions.append(caution_of_kept_centre(float(examined.centre.shift), float(examined.centre.std)))
    if calibration is not None and kind is None:
        found = caution_of(calibration.unusual.test(examined.symptoms))
        cautions += [found] if found is not None else []
    return cautions


def contradicted(examined: Examined) -> bool:
    """Whether the data say that the stated centre is wrong."""
    return bool(examined.centre.stated_is_wrong.all()) and math.isfinite(float(examined.centre.std))


def notes_of(examined: Examined) -> list[str]:
    """What was found and corrected."""
    if not contradicted(examined) or not examined.corrected:
        return []
    shift, std = float(examined.centre.shift), float(examined.centre.std)
    return [f"centre of rotation: {shift:+.2f} +- {std:.2f} bins from the stated one, corrected"]
