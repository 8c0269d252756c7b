"""What a finding means, in words that a user can act on: the cause, how sure it is, and what to do about it."""

import dataclasses
from typing import Any

from bayescade.consistency.p_values import Finding

# symptom -> (cause, what is wrong, what to do)
CAUSES = {
    "angles": (
        "angles",
        "the angles of the views do not fit the data",
        "check angles_degrees in the geometry: unit, order, direction, start",
    ),
    "hardening": (
        "hardening or scatter",
        "large line integrals are too small, as by beam hardening or scatter",
        "correct the scan for beam hardening and scatter; values inside the object read too low",
    ),
    "gain": (
        "gain",
        "the intensity of the beam changes from view to view",
        "normalise every view by its empty borders (flat field) before the logarithm",
    ),
    "background": (
        "background",
        "rays beside the object are not zero",
        "subtract the background, or normalise every view by its empty borders",
    ),
    "truncation": (
        "truncation",
        "the object reaches the end of the detector in some views, or beyond",
        "use a wider field of view; values near the border of the image, and their mean everywhere, are not known",
    ),
    "rings": (
        "rings",
        "bins have gains of their own, which give rings",
        "correct the flat field, or remove stripes from the sinogram",
    ),
    "stripes": (
        "rings",
        "a bin differs from its neighbours in most views, which gives a ring",
        "replace the bin by its neighbours, or remove stripes from the sinogram",
    ),
    "correlated": (
        "correlated noise",
        "the noise of neighbouring bins is alike, as from a blurred detector",
        "average neighbouring bins; details of the size of the blur are not known",
    ),
    "dead": ("dead bins", "bins of the detector were not measured", "list them, and trust no detail near their rings"),
    "noise": (
        "noise",
        "the noise is not that which the scan file states",
        "state the noise as it is, or remove it from the file: it is then estimated",
    ),
    "residual": (
        "data not explained",
        "the image does not explain the data as images of good scans do",
        "check geometry and preprocessing; something is wrong that no other test names",
    ),
}
# Symptoms that a fault has too: an object at the borders of the detector makes them differ in every way.
EXPLAINS = {"truncation": ("gain", "background", "rings", "correlated", "residual")}
CERTAIN = 1e-3  # p-value of a symptom that explains others
VALUES = {
    "counts": ("counts", "the values look like counts: rays beside the object are the brightest"),
    "transmission": ("transmission", "the values look like transmissions I / I0: rays beside the object are near 1"),
    "hounsfield": ("Hounsfield units", "many values are far below zero, as of an image in Hounsfield units"),
}
TAKE_LOGARITHM = "give line integrals: bayescade.data.preprocess has flat_and_dark and minus_log"


@dataclasses.dataclass(frozen=True)
class Caution:
    """A warning about one scan."""

    cause: str
    p_value: float  # how often a good scan would look like this
    message: str
    command: str  # what to do

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    def sentence(self) -> str:
        """One line."""
        return f"{self.cause}: {self.message} (p = {self.p_value:.2g}); {self.command}"


def caution_of(finding: Finding) -> Caution | None:
    """The warning of an unusual scan: its cause is the symptom with the smallest p-value, or the one that explains that."""
    if not finding.unusual or not finding.symptoms:
        return None
    name = min(finding.symptoms, key=lambda symptom: finding.symptoms[symptom])
    for cause, consequences in EXPLAINS.items():
        if name in consequences and finding.symptoms.get(cause, 1.0) < CERTAIN:
            name = cause
    cause, message, command = CAUSES[name]
    return Caution(cause, finding.p_value, message, command)


def caution_of_values(kind: str) -> Caution:
    """The warning of values that are no line integrals."""
    cause, message = VALUES[kind]
    return Caution(cause, 0.0, message, TAKE_LOGARITHM)


def caution_of_kept_centre(shift: float, std: float) -> Caution:
    """The warning of a stated centre that the data contradict, and that was used all the same."""
    return Caution(
        "centre",
        0.0,
        f"the data say that the centre of rotation is {shift:+.2f} +- {std:.2f} bins from the stated one, which was used",
        "correct it: --center auto",
    )


def caution_of_centre(distance: float) -> Caution:
    """The warning of a centre that two methods find at different positions."""
    return Caution(
        "centre",
        0.0,
        f"the centre of rotation is not known: two methods differ by {distance:.2f} bins",
        "give the centre, if you know it: --center BIN",
    )
