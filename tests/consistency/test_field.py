"""The Gaussian field of a geometry: against dense matrices, finite differences, and data from the model itself."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bayescade.consistency import field as field_module
from bayescade.consistency.field import BASELINE, ObjectField
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam

SIZE = 32


def parallel(views: int = 12, arc: float = math.pi) -> ParallelBeam:
    return ParallelBeam([arc * (i + 0.5) / views for i in range(views)], 48, 1.0, image_shape=(SIZE, SIZE))


def fan(views: int = 14) -> FanBeam:
    angles = [2 * math.pi * i / views for i in range(views)]
    return FanBeam(angles, 60, 1.5, 0.4, 1.0, (SIZE, SIZE), source_origin=60.0, source_detector=90.0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_module, "GRID", 12)


@pytest.fixture(params=[parallel, fan])
def geometry(request: pytest.FixtureRequest) -> Geometry:
    made: Geometry = request.param()
    return made


def dense_covariance(field: ObjectField, ratio: float) -> torch.Tensor:
    """K by its definition."""
    baselines = torch.block_diag(*[torch.full((field.bins, 1), BASELINE, dtype=torch.float64)] * field.views)
    both = torch.cat([field.whitened, baselines], 1)
    return torch.eye(field.rays, dtype=torch.float64) + ratio * both @ both.T


def test_precision_is_the_inverse_of_the_covariance(geometry: Geometry) -> None:
    field = ObjectField(geometry)
    columns = torch.randn(2, 3, field.rays, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ratios = torch.tensor([10.0, 1e4], dtype=torch.float64)
    expected = torch.stack(
        [torch.linalg.solve(dense_covariance(field, r), c.T).T for r, c in zip(ratios, columns, strict=True)]
    )
    assert torch.allclose(field.precise(columns, ratios), expected, atol=1e-7)


@pytest.mark.parametrize("scan", [parallel(40), fan(40)], ids=["parallel", "fan"])
def test_the_evidence_has_its_maximum_at_the_true_levels(scan: Geometry) -> None:
    field = ObjectField(scan)
    generator = torch.Generator().manual_seed(1)
    root = torch.linalg.cholesky(dense_covariance(field, 1e3))
    data = 0.1 * torch.randn(40, field.rays, dtype=torch.float64, generator=generator) @ root.T
    level, ratio = field.levels(data)
    assert float(level.log().mean()) == pytest.approx(math.log(0.01), abs=0.1)
    assert float(ratio.log().mean()) == pytest.approx(math.log(1e3), abs=0.3)


def test_line_integrals_are_those_of_blobs(geometry: Geometry) -> None:
    """A constant image of blobs: line integrals are chords of the square that the blobs cover."""
    field = ObjectField(geometry)
    edge = math.isqrt(field.matrix.shape[1])
    side = edge * SIZE / field_module.GRID
    middle = field.matrix.sum(1).reshape(field.views, field.bins)[0, field.bins // 2]
    angle = geometry.angles[0]
    chord = side / max(abs(math.cos(angle)), abs(math.sin(angle)))
    assert float(middle) == pytest.approx(chord, rel=0.03)


def test_derivatives_are_those_of_finite_differences(geometry: Geometry) -> None:
    field = ObjectField(geometry)
    blobs = torch.randn(1, field.matrix.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    fit = dataclasses.replace(field.fit(torch.zeros(1, field.rays, dtype=torch.float64)), blobs=blobs)

    def data(scan: Geometry) -> torch.Tensor:
        return blobs @ ObjectField(scan).matrix.double().T

    h = 1e-2
    moved = [dataclasses.replace(geometry, offset=geometry.offset + sign * h * geometry.bin_width) for sign in (1, -1)]
    by_offset = (data(moved[0]) - data(moved[1])) / (2 * h)
    assert torch.allclose(field.offset_column(fit)[0], by_offset, atol=2e-3 * float(by_offset.abs().max()))
    turned = [dataclasses.replace(geometry, angles=np.asarray(geometry.angles) + sign * h) for sign in (1, -1)]
    by_angle = (data(turned[0]) - data(turned[1])) / (2 * h)
    columns = field.angle_columns(fit)
    assert torch.allclose(columns.sum(1), by_angle, atol=5e-3 * float(by_angle.abs().max()))
    assert torch.equal(columns[0, 1].reshape(field.views, -1)[0], torch.zeros(field.bins, dtype=torch.float64))


def test_effects_have_their_standard_errors() -> None:
    """Data from the model plus a known effect: estimates are unbiased, with the stated errors."""
    field = ObjectField(parallel(30))
    generator = torch.Generator().manual_seed(3)
    root = torch.linalg.cholesky(dense_covariance(field, 100.0))
    count = 200
    data = 0.1 * torch.randn(count, field.rays, dtype=torch.float64, generator=generator) @ root.T
    columns = torch.randn(1, 2, field.rays, dtype=torch.float64, generator=generator).expand(count, -1, -1)
    data = data + 0.005 * columns[:, 0] - 0.002 * columns[:, 1]
    effect = field.effect(field.fit(data), columns)
    z = (effect.value - torch.tensor([0.005, -0.002])) / torch.diagonal(effect.covariance, dim1=1, dim2=2).sqrt()
    assert float(z.mean().abs()) < 4 / math.sqrt(2 * count)
    assert float(z.square().mean().sqrt()) == pytest.approx(1, abs=0.1)
    assert float(effect.left.mean()) == pytest.approx(1, abs=0.1)


def test_many_views_are_thinned_and_bins_are_merged() -> None:
    field = ObjectField(parallel(views=150))
    assert field.step == 3
    assert field.views == 50
    sinogram = torch.arange(150 * 48.0).reshape(1, 1, 150, 48)
    data = field.coarse(sinogram).reshape(50, field.bins)
    first = sinogram[0, 0, 3, field.first : field.first + field.merged].double().mean()
    assert float(data[1, 0]) == pytest.approx(float(first))
