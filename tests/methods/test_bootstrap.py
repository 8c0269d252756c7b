"""The bootstrap, where the answer is known: a linear method, movements that are undone, and a method that likes its image."""

import math

import pytest
import torch
from torch import Tensor

from bayescade.data.noise import Noise, common_noise
from bayescade.methods._bootstrap import Bootstrapped, moved, moved_back
from bayescade.models import load_model
from bayescade.phantoms import ellipses
from bayescade.physics.geometry import ParallelBeam
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction, Reconstructor

SHAPE = (24, 24)
GEOMETRY = ParallelBeam([math.pi * (i + 0.5) / 12 for i in range(12)], 35, 1.0, image_shape=SHAPE)
NOISE = 0.05


def blob(x: float, y: float, shape: tuple[int, int] = (40, 56)) -> Tensor:
    """A smooth bump at x, y in pixels from the middle; x along the first axis."""
    u = torch.arange(shape[0]) - (shape[0] - 1) / 2 - x
    v = torch.arange(shape[1]) - (shape[1] - 1) / 2 - y
    return torch.exp(-(u[:, None] ** 2 + v[None, :] ** 2) / (2 * 3.0**2))[None, None].float()


def test_a_bump_moves_to_where_it_should() -> None:
    angle, shift = torch.tensor([0.4]), torch.tensor([[2.5, -1.5]])
    x, y = 6.0, 4.0
    after = (math.cos(0.4) * x - math.sin(0.4) * y + 2.5, math.sin(0.4) * x + math.cos(0.4) * y - 1.5)
    torch.testing.assert_close(moved(blob(x, y), angle, shift), blob(*after), atol=2e-2, rtol=0)
    torch.testing.assert_close(moved_back(blob(*after), angle, shift), blob(x, y), atol=4e-2, rtol=0)


def test_the_movement_is_that_of_the_projector() -> None:
    """A turned object has the data of the turned scan."""
    angle = 0.3
    image = blob(4.0, -2.0, SHAPE)
    turned = ParallelBeam([float(a) + angle for a in GEOMETRY.angles], 35, 1.0, image_shape=SHAPE)
    data = ray_transform(turned)(moved(image, torch.tensor([angle]), torch.zeros(1, 2)))
    stated = ray_transform(GEOMETRY)(image)
    torch.testing.assert_close(data, stated, atol=0.02 * float(stated.max()), rtol=0)
    other = ray_transform(turned)(moved(image, torch.tensor([-angle]), torch.zeros(1, 2)))
    assert float((other - stated).abs().max()) > 0.2 * float(stated.max())


def test_the_noise_part_of_a_linear_method_is_its_closed_form() -> None:
    """FBP is a matrix R: noise of variance s^2 gives pixels the variance s^2 times the sum of squares of a row of R."""
    fbp = load_model("fbp", GEOMETRY)
    sinogram = ray_transform(GEOMETRY)(ellipses.generate(1, SHAPE, seed=1))
    views, bins = GEOMETRY.sinogram_shape
    unit = torch.eye(views * bins).reshape(-1, 1, views, bins)
    columns = fbp(unit).image  # (rays, 1, height, width)
    clean = ray_transform(GEOMETRY)(fbp(sinogram).image)
    std = NOISE * float(clean.abs().mean())
    exact = std**2 * columns.square().sum(0)
    result = Bootstrapped(fbp, GEOMETRY, common_noise(NOISE))(sinogram, samples=400)
    assert result.noise is not None
    ratio = result.noise[0] / exact
    assert float(ratio.mean()) == pytest.approx(1, abs=0.02)
    assert float(ratio.std()) == pytest.approx(math.sqrt(2 / 399), rel=0.2)
    assert result.aleatoric is not None
    assert bool((result.aleatoric >= result.noise).all())
    assert float(result.variance.mean()) > 1.2 * float(result.noise.mean())  # 12 views: streaks are no noise


class Liking(Reconstructor):
    """A method that always answers with the same image."""

    name = "liking"

    def __init__(self, image: Tensor) -> None:
        self.image, self.data_shape = image, (1, *GEOMETRY.sinogram_shape)

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        return Reconstruction(self.image.expand(len(data), -1, -1, -1), self.name)


def test_a_method_that_ignores_the_data_is_found_out_by_the_movements() -> None:
    image = ellipses.generate(1, SHAPE, seed=2)
    result = Bootstrapped(Liking(image), GEOMETRY, Noise())(ray_transform(GEOMETRY)(image), samples=16)
    assert result.noise is not None
    assert float(result.noise.max()) == 0
    assert float(result.variance.mean().sqrt()) > 0.02


def test_the_same_seed_gives_the_same_error_bars_in_any_batch() -> None:
    images = ellipses.generate(3, SHAPE, seed=3)
    sinograms = ray_transform(GEOMETRY)(images)
    method = Bootstrapped(load_model("fbp", GEOMETRY), GEOMETRY, None)
    together = method(sinograms, samples=4, seed=1)
    alone = method(sinograms[2:], samples=4, seed=1, index=2)
    torch.testing.assert_close(together.variance[2:], alone.variance)
    assert not torch.equal(method(sinograms[2:], samples=4, seed=2, index=2).variance, alone.variance)
