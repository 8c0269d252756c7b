"""The two noise models that ship, and how a noise goes into files and comes back."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from bayescade import noise as noise_models
from bayescade import plugins
from bayescade.data.noise import Noise, add_noise, common_noise, noise_from_json, noise_from_text, noise_model
from bayescade.errors import UserError
from bayescade.noise import gaussian, mixed, poisson
from bayescade.testing import check_noise


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + index) for index in range(count)]


@pytest.mark.parametrize("name", plugins.names(noise_models))
def test_every_noise_model_passes_the_check(name: str) -> None:
    check_noise(plugins.load(noise_models, name))


def test_gaussian_noise_is_relative_to_the_mean_of_the_image() -> None:
    clean = torch.stack([torch.full((1, 200, 300), 2.0), torch.full((1, 200, 300), -10.0)]).double()
    noise = gaussian.add(clean, gaussian.Settings(0.05), generators=generators(2)) - clean
    n = 200 * 300
    for image, mean in zip(noise, (2.0, 10.0), strict=True):
        std = 0.05 * mean
        assert float(image.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * n))
        assert abs(float(image.mean())) < 5 * std / math.sqrt(n)


def test_no_noise_is_no_noise() -> None:
    clean = torch.rand(2, 1, 3, 4)
    assert torch.equal(gaussian.add(clean, gaussian.Settings(0.0), generators=generators(2)), clean)


def test_poisson_noise_has_the_variance_of_counted_photons() -> None:
    """To first order the variance of -ln(N/n)/m is 1 / (m^2 n e^(-m z)); the mean has a bias of half that times m."""
    z, photons, m = 50.0, 1e5, 0.02
    clean = torch.full((1, 1, 300, 400), z, dtype=torch.float64)
    noisy = poisson.add(clean, poisson.Settings(photons, m), generators=generators(1))
    variance = 1 / (m**2 * photons * math.exp(-m * z))
    count = clean.numel()
    assert float(noisy.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / count) + 1e-3)
    assert abs(float(noisy.mean()) - z - m * variance / 2) < 5 * math.sqrt(variance / count)


def test_a_bin_that_counts_nothing_stays_finite() -> None:
    noisy = poisson.add(torch.full((1, 1, 5, 5), 1e4), poisson.Settings(10), generators=generators(1))
    assert bool(torch.isfinite(noisy).all())
    assert float(noisy.max()) == pytest.approx(math.log(10 / 0.5) / 0.02)


@pytest.mark.parametrize("noise", [common_noise(0.1), common_noise(photons=1e4)], ids=["gaussian", "poisson"])
def test_the_same_seed_gives_the_same_noise(noise: Noise) -> None:
    clean = torch.rand(2, 1, 3, 4)
    assert torch.equal(add_noise(clean, noise, seed=3), add_noise(clean, noise, seed=3))
    assert not torch.equal(add_noise(clean, noise, seed=3), add_noise(clean, noise, seed=4))


def test_the_numbers_of_a_seed_stay_as_they_are() -> None:
    """Scores in the documents, and models that were trained, depend on them."""
    clean = torch.arange(6.0).reshape(2, 1, 1, 3) + 1

    def numbers(noise: Noise) -> Tensor:
        return add_noise(clean, noise, seed=7, first=1).flatten()

    torch.testing.assert_close(numbers(common_noise(0.1)), torch.tensor(GAUSSIAN), rtol=1e-6, atol=0)
    torch.testing.assert_close(numbers(common_noise(photons=1e4)), torch.tensor(POISSON), rtol=1e-6, atol=0)


GAUSSIAN = [1.0975891, 2.1427443, 2.858422, 3.8297017, 5.2111893, 5.949481]
POISSON = [1.5900156, 1.8124566, 2.7492154, 4.2125778, 5.3458643, 5.9504395]


@pytest.mark.parametrize("relative", [-0.1, float("nan"), float("inf")])
def test_a_bad_level_is_named(relative: float) -> None:
    with pytest.raises(UserError, match="noise: expected"):
        gaussian.Settings(relative)


@pytest.mark.parametrize(("photons", "attenuation"), [(0, 0.02), (-1, 0.02), (1e4, 0), (float("nan"), 1)])
def test_bad_photons_are_named(photons: float, attenuation: float) -> None:
    with pytest.raises(UserError, match=r"photons|attenuation"):
        poisson.Settings(photons, attenuation)


def test_a_noise_describes_itself() -> None:
    assert Noise().describe() == "1 % Gaussian noise"
    assert common_noise(photons=1e5).describe() == "1e5 photons per bin"
    assert common_noise(photons=2.5e4).describe() == "2.5e4 photons per bin"


@pytest.mark.parametrize("noise", [Noise(), common_noise(0.2), common_noise(photons=1e4, attenuation=0.1)])
def test_a_noise_goes_to_json_and_back(noise: Noise) -> None:
    assert noise_from_json(noise.to_json()) == noise
    settings = [f"{key}={value}" for key, value in dataclasses.asdict(noise.settings).items()]
    assert noise_model(noise.model, settings) == noise


@pytest.mark.parametrize(
    ("old", "noise"),
    [
        ({"relative": 0.02, "photons": 0.0, "attenuation": 0.02}, common_noise(0.02)),
        ({"relative": 0.01, "photons": 1e4, "attenuation": 0.1}, common_noise(photons=1e4, attenuation=0.1)),
        ({}, Noise()),
    ],
)
def test_the_old_form_is_read(old: dict[str, float], noise: Noise) -> None:
    assert noise_from_json(old) == noise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON text"),
        ("3", "noise: expected"),
        ('{"model": "gausian"}', "unknown noise model 'gausian'; did you mean 'gaussian'"),
        ('{"model": "gaussian", "photons": 3}', "unknown setting 'photons'"),
        ('{"relative": "much"}', "relative: expected a number"),
    ],
)
def test_a_noise_that_cannot_be_read_is_named(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        noise_from_text(text)


def test_settings_of_another_model_are_named() -> None:
    with pytest.raises(UserError, match="noise model 'poisson': expected its Settings"):
        Noise("poisson")


def test_electronic_noise_adds_to_that_of_the_photons() -> None:
    """To first order var(-ln(N / n) / m) = (N + e^2) / (m N)^2."""
    z, photons, m, electronic = 50.0, 1e4, 0.02, 40.0
    clean = torch.full((1, 1, 300, 400), z, dtype=torch.float64)
    noisy = poisson.add(clean, poisson.Settings(photons, m, electronic), generators=generators(1))
    counts = photons * math.exp(-m * z)
    assert float(noisy.var()) == pytest.approx((counts + electronic**2) / (m * counts) ** 2, rel=0.02)


def test_mixed_noise_has_levels_within_its_limits() -> None:
    """Gaussian levels are read off noisy data of one value; about half of the scans count photons."""
    settings = mixed.Settings(photon_share=0.0, least=0.01, most=0.02)
    clean = torch.full((200, 1, 40, 50), 3.0, dtype=torch.float64)
    noisy = mixed.add(clean, settings, generators=generators(200))
    levels = (noisy - 3).flatten(1).std(1) / 3
    assert 0.0095 < float(levels.min()) < 0.0105
    assert 0.019 < float(levels.max()) < 0.0208
    assert float(levels.log().mean()) == pytest.approx(math.log(0.01 * math.sqrt(2)), abs=0.05)
    photons = mixed.add(clean, mixed.Settings(photon_share=1.0), generators=generators(200))
    spaced = (photons[:, 0, 0, :].diff(dim=-1).abs() > 1e-12).all()  # counts are whole numbers, plus electronic noise
    assert bool(spaced)
    assert bool(torch.isfinite(photons).all())
    with pytest.raises(UserError, match="setting most"):
        mixed.Settings(least=0.1, most=0.01)
