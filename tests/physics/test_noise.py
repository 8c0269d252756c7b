import math

import pytest
import torch

from bayescade.errors import UserError
from bayescade.physics.noise import gaussian_noise, poisson_noise


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_gaussian_noise_is_relative_to_each_images_mean() -> None:
    clean = torch.stack([torch.full((1, 200, 300), 2.0), torch.full((1, 200, 300), -10.0)]).double()
    noise = gaussian_noise(clean, 0.05, generator=generator()) - clean
    n = 200 * 300
    for draw, mean in zip(noise, (2.0, 10.0), strict=True):
        std = 0.05 * mean
        assert float(draw.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * n))
        assert abs(float(draw.mean())) < 5 * std / math.sqrt(n)


def test_no_noise_is_no_noise() -> None:
    clean = torch.rand(2, 1, 3, 4)
    assert torch.equal(gaussian_noise(clean, 0.0, generator=generator()), clean)


def test_poisson_noise_has_the_variance_of_counted_photons() -> None:
    """To first order the variance of -ln(N/n)/m is 1 / (m^2 n e^(-m z)); the mean has a bias of half that times m."""
    z, photons, m = 50.0, 1e5, 0.02
    clean = torch.full((1, 1, 300, 400), z, dtype=torch.float64)
    noisy = poisson_noise(clean, photons, m, generator=generator())
    variance = 1 / (m**2 * photons * math.exp(-m * z))
    count = clean.numel()
    assert float(noisy.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / count) + 1e-3)
    assert abs(float(noisy.mean()) - z - m * variance / 2) < 5 * math.sqrt(variance / count)


def test_a_bin_that_counts_nothing_stays_finite() -> None:
    noisy = poisson_noise(torch.full((1, 1, 5, 5), 1e4), 10, generator=generator())
    assert bool(torch.isfinite(noisy).all())
    assert float(noisy.max()) == pytest.approx(math.log(10 / 0.5) / 0.02)


def test_the_same_generator_gives_the_same_noise() -> None:
    clean = torch.rand(2, 1, 3, 4)
    for noise in (lambda g: gaussian_noise(clean, 0.1, generator=g), lambda g: poisson_noise(clean, 1e4, generator=g)):
        assert torch.equal(noise(generator(3)), noise(generator(3)))
        assert not torch.equal(noise(generator(3)), noise(generator(4)))


@pytest.mark.parametrize("relative", [-0.1, float("nan"), float("inf")])
def test_a_bad_level_is_named(relative: float) -> None:
    with pytest.raises(UserError, match="noise: expected"):
        gaussian_noise(torch.rand(1, 1, 2, 2), relative, generator=generator())


@pytest.mark.parametrize(("photons", "attenuation"), [(0, 0.02), (-1, 0.02), (1e4, 0), (float("nan"), 1)])
def test_bad_photons_are_named(photons: float, attenuation: float) -> None:
    with pytest.raises(UserError, match=r"photons|attenuation"):
        poisson_noise(torch.rand(1, 1, 2, 2), photons, attenuation, generator=generator())
