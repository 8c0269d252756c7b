"""Every symptom is large where a scan has its fault, and not where it has none."""

import dataclasses
import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayescade.calibration.simulated import CLEAN, ScanKind, simulated_scans
from bayescade.consistency.causes import CAUSES, VALUES, caution_of, caution_of_centre, caution_of_values
from bayescade.consistency.field import ObjectField
from bayescade.consistency.moments import border_bins
from bayescade.consistency.p_values import Finding, UnusualScans
from bayescade.consistency.symptoms import Borders, largest_values, second_difference_std, symptoms
from bayescade.consistency.values import looks_like
from bayescade.data.noise import common_noise
from bayescade.data.scanner import blurred
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.noise_level import noise_std

SHAPE = (48, 48)
SCANS = 60
CENTRED = dataclasses.replace(CLEAN, centre_error=0.0)  # the centre is found before the symptoms are
Fault = Callable[[Tensor], Tensor]
BEAMS = ("parallel", "fan")


def geometry_of(beam: str) -> Geometry:
    if beam == "parallel":
        return ParallelBeam([math.pi * (i + 0.5) / 24 for i in range(24)], 79, 1.0, image_shape=SHAPE)
    angles = [2 * math.pi * i / 24 for i in range(24)]
    return FanBeam(angles, 87, 1.5, 0.0, 1.0, SHAPE, source_origin=90.0, source_detector=135.0)


@functools.cache
def field(beam: str) -> ObjectField:
    return ObjectField(geometry_of(beam))


@functools.cache
def clean(beam: str, split: str = "calibration") -> Tensor:
    kind = ScanKind(geometry_of(beam), common_noise(), scanner=CENTRED)
    return torch.cat([scan.sinogram for scan in simulated_scans(kind, SCANS, seed=0, split=split)])


def found(beam: str, sinogram: Tensor) -> dict[str, Tensor]:
    stated = 0.01 * clean(beam, "test")[: len(sinogram)].abs().mean((1, 2, 3))
    return symptoms(field(beam), sinogram, torch.zeros(len(sinogram)), noise_std(sinogram), stated)


def per_scan(values: dict[str, Tensor]) -> list[dict[str, float]]:
    count = len(next(iter(values.values())))
    return [{name: float(value[i]) for name, value in values.items()} for i in range(count)]


@functools.cache
def unusual(beam: str) -> UnusualScans:
    """The test of the parallel beam, from clean scans."""
    y = clean(beam)
    stated = 0.01 * y.abs().mean((1, 2, 3))
    return UnusualScans.fit(per_scan(symptoms(field(beam), y, torch.zeros(len(y)), noise_std(y), stated)))


def dead(y: Tensor) -> Tensor:
    y = y.clone()
    y[..., 30] = (y[..., 29] + y[..., 31]) / 2
    return y


def drift(y: Tensor) -> Tensor:
    random = torch.randn(y.shape[2], generator=torch.Generator().manual_seed(0))
    return y + 0.02 * y.amax((1, 2, 3), keepdim=True) * random[:, None]


def stripe(y: Tensor) -> Tensor:
    y = y.clone()
    y[..., 15] += 0.25 * y.amax((1, 2, 3))[:, None, None]
    return y


def ring_gains(y: Tensor) -> Tensor:
    random = torch.randn(y.shape[3], generator=torch.Generator().manual_seed(0))
    return y + 0.02 * y.amax((1, 2, 3), keepdim=True) * random


def noise_like(y: Tensor) -> Tensor:
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(1)) * 0.01 * y.abs().mean((1, 2, 3), True)


FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "dead": (dead, ("dead bins",)),
    "drift": (drift, ("gain", "background")),
    "background": (lambda y: y + 0.05 * y.amax((1, 2, 3), keepdim=True), ("background",)),
    "truncation": (lambda y: y[..., 20:-20], ("truncation",)),
    "rings": (ring_gains, ("rings",)),
    "stripe": (stripe, ("rings",)),
    "noise": (lambda y: y + math.sqrt(8) * noise_like(y), ("noise",)),
    "correlated": (lambda y: y + 3 * blurred(noise_like(y), 1.0), ("correlated noise", "noise")),
    "hardening": (
        lambda y: y - 0.3 * y.clamp_min(0) ** 2 / y.amax((1, 2, 3), keepdim=True),
        ("hardening or scatter",),
    ),
}


@pytest.mark.parametrize("beam", BEAMS)
def test_clean_scans_seldom_alarm(beam: str) -> None:
    """Of other clean scans: 3 % are expected, at most 5 of 60 is exceeded once in 60 times."""
    alarms = sum(unusual(beam).test(scan).unusual for scan in per_scan(found(beam, clean(beam, "test"))))
    assert alarms <= 5


@pytest.mark.parametrize("beam", BEAMS)
@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "truncation"])
def test_a_fault_is_found_and_named(fault: str, beam: str) -> None:
    change, causes = FAULTS[fault]
    scans = per_scan(found(beam, change(clean(beam, "test")[:20])))
    cautions = [caution_of(unusual(beam).test(scan)) for scan in scans]
    named = [caution is not None and caution.cause in causes for caution in cautions]
    least = 5 if fault == "hardening" else 14  # of 20; of clean scans one in 30 alarms
    assert sum(named) >= least, [caution.cause if caution else None for caution in cautions]


@pytest.mark.parametrize("beam", BEAMS)
def test_angles_that_are_wrong_are_found_and_named(beam: str) -> None:
    stated = geometry_of(beam)
    random = torch.randn(stated.views, generator=torch.Generator().manual_seed(0)).double()
    angles = [angle + math.radians(2) * float(error) for angle, error in zip(stated.angles, random, strict=True)]
    kind = ScanKind(dataclasses.replace(stated, angles=tuple(angles)), common_noise(), scanner=CENTRED)
    y = torch.cat([scan.sinogram for scan in simulated_scans(kind, 20, seed=0, split="test")])
    cautions = [caution_of(unusual(beam).test(scan)) for scan in per_scan(found(beam, y))]
    assert sum(caution is not None and caution.cause == "angles" for caution in cautions) >= 14


def test_truncation_is_large_where_the_borders_are_not_empty() -> None:
    y = clean("parallel")
    whole, cut = Borders(y).symptoms()["truncation"], Borders(y[..., 25:-25]).symptoms()["truncation"]
    assert float(cut.median()) > float(whole.max())


def test_symptoms_do_not_depend_on_the_unit() -> None:
    y = clean("parallel")[:5]
    one, other = (found("parallel", values) for values in (y, 1000 * y))
    for name in one.keys() - {"noise"}:
        assert torch.allclose(one[name], other[name], rtol=1e-4, atol=1e-4), name


def test_second_differences_give_the_noise_under_a_straight_line() -> None:
    noise = 0.3 * torch.randn(4, 2, 400, 6, generator=torch.Generator().manual_seed(0)).double()
    line = torch.linspace(0, 50, 400).double()[:, None]
    assert float(second_difference_std(noise + line, 2).mean()) == pytest.approx(0.3, rel=0.03)
    assert float(second_difference_std(noise[..., :2, :], 2).max()) < 1e-9


def test_the_largest_value_is_not_that_of_one_bright_ray() -> None:
    y = torch.ones(1, 50, 60)
    y[0, 3, 4] = 100
    assert float(largest_values(y)) == 1


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e5])
def test_line_integrals_of_any_unit_are_accepted(unit: float) -> None:
    for beam in BEAMS:
        assert [looks_like(unit * y[None]) for y in clean(beam)[:20]] == [None] * 20


def test_other_kinds_of_values_are_told() -> None:
    for y in clean("parallel")[:20].split(1):
        bent = 3 * y / y.amax()
        assert looks_like(3e4 * torch.exp(-bent)) == "counts"
        assert looks_like(torch.exp(-bent)) == "transmission"
        assert looks_like(bent - 10) == "hounsfield"


def test_truncation_explains_what_else_is_wrong_at_the_borders() -> None:
    def cause(**symptoms: float) -> str:
        found = caution_of(Finding(1e-6, True, symptoms))
        assert found is not None
        return found.cause

    assert cause(background=1e-8, truncation=1e-5) == "truncation"
    assert cause(background=1e-8, truncation=0.01) == "background"
    assert cause(angles=1e-8, truncation=1e-5) == "angles"


def test_the_borders_of_clean_scans_are_empty_on_a_narrow_detector_too() -> None:
    narrow = dataclasses.replace(geometry_of("parallel"), bins=33)
    kind = ScanKind(narrow, common_noise(1e-6), scanner=CENTRED)
    scans = torch.cat([scan.sinogram for scan in simulated_scans(kind, 10, seed=0, split="test")])
    ends = border_bins(33)
    assert float(scans[..., :ends].abs().max()) < 1e-3 * float(scans.max())


def test_words_say_what_is_wrong_and_what_to_do() -> None:
    every = set(found("parallel", clean("parallel", "test")[:1])) | {"residual"}
    assert every == set(CAUSES)
    for kind in VALUES:
        assert "minus_log" in caution_of_values(kind).sentence()
    assert "--center" in caution_of_centre(1.234).command
    assert "1.23 bins" in caution_of_centre(1.234).sentence()
