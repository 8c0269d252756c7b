"""The noise estimated from sinograms, where the noise is known."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bayescade.data.noise import Noise, add_noise, common_noise
from bayescade.data.noise_estimate import LEAST, STENCILS, noise_map, std_through_object
from bayescade.data.preprocess import average_bins
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import scan_batches
from bayescade.data.sources import image_source
from bayescade.errors import UserError
from bayescade.noise import poisson
from bayescade.physics.cases import case_geometry

IMAGES = 50


def ellipses(case: str, count: int) -> torch.Tensor:
    """Line integrals of ellipses on a finer grid, without noise."""
    source = image_source("ellipses", (128, 128), seed=0)
    scans = scan_batches(
        source, case_geometry(case), common_noise(relative=0), seed=0, count=count, scanner=Scanner(grid_factor=2)
    )
    return torch.cat([batch.sinogram for batch in scans])


@pytest.fixture(scope="module")
def clean() -> dict[str, torch.Tensor]:
    return {case: ellipses(case, IMAGES) for case in ("sparse-8", "sparse-32", "limited-90")}


def gaussian(sinogram: torch.Tensor, relative: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The sinograms with noise, and its standard deviation."""
    noisy = add_noise(sinogram, common_noise(relative=relative), seed=1)
    return noisy, relative * sinogram.abs().mean((1, 2, 3))


def counted(sinogram: torch.Tensor, photons: float, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The sinograms of counted photons, and the standard deviation of every ray; `largest` is the largest line integral."""
    noisy = []
    attenuation = largest / sinogram.amax((1, 2, 3))
    for k, single in enumerate(sinogram.split(1)):
        noise = Noise("poisson", poisson.Settings(photons, float(attenuation[k])))
        noisy.append(add_noise(single, noise, seed=1, first=k))
    attenuation = attenuation[:, None, None, None]
    return torch.cat(noisy), (attenuation * sinogram / 2).exp() / photons**0.5 / attenuation


def through_object(std: torch.Tensor, sinogram: torch.Tensor) -> torch.Tensor:
    """The root of the mean variance of the rays through the object."""
    through = sinogram > 0.1 * sinogram.amax((1, 2, 3), keepdim=True)
    return ((std**2 * through).sum((1, 2, 3)) / through.sum((1, 2, 3))).sqrt()


def smooth(views: int = 24, bins: int = 160) -> torch.Tensor:
    """Line integrals of a blurred disc that moves from view to view, with largest value 1, (1, 1, views, bins)."""
    centre = bins / 2 + bins / 8 * torch.linspace(-1, 1, views)[:, None]
    return torch.exp(-(((torch.arange(bins) - centre) / (bins / 8)) ** 2))[None, None]


# Ratio of the estimate to the truth over 50 images: mean, median. Means are above the medians: in two images of 50 the texture
# looks like the noise of photons.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "relative", "mean", "median"),
    [
        ("sparse-32", 0.0025, 1.50, 1.30),
        ("sparse-32", 0.01, 1.25, 1.10),
        ("sparse-32", 0.04, 1.05, 1.04),
        ("sparse-32", 0.1, 1.02, 1.02),
        ("limited-90", 0.0025, 1.45, 1.18),
        ("limited-90", 0.01, 1.10, 1.05),
        ("limited-90", 0.04, 1.03, 1.03),
        ("sparse-8", 0.01, 1.18, 1.15),
        ("sparse-8", 0.04, 1.06, 1.05),
    ],
)
def test_gaussian_noise_of_ellipses(
    clean: dict[str, torch.Tensor], case: str, relative: float, mean: float, median: float
) -> None:
    noisy, std = gaussian(clean[case], relative)
    ratio = std_through_object(noisy) / std
    assert 0.95 < float(ratio.mean()) < mean
    assert 0.95 < float(ratio.median()) < median
    assert float(ratio.min()) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "photons", "largest", "mean", "median"),
    [
        ("sparse-32", 1e4, 3.0, 0.88, 0.93),
        ("sparse-32", 1e3, 3.0, 0.90, 0.95),
        ("limited-90", 1e4, 3.0, 0.88, 0.93),
        ("limited-90", 1e4, 5.0, 0.88, 0.93),
        ("sparse-8", 1e4, 3.0, 0.65, 0.65),
    ],
)
def test_counted_photons_of_ellipses(
    clean: dict[str, torch.Tensor], case: str, photons: float, largest: float, mean: float, median: float
) -> None:
    noisy, std = counted(clean[case], photons, largest)
    ratio = std_through_object(noisy) / through_object(std, clean[case])
    assert mean < float(ratio.mean()) < 1.1
    assert median < float(ratio.median()) < 1.1


@pytest.mark.slow
def test_wide_bins_and_truncated_scans(clean: dict[str, torch.Tensor]) -> None:
    wide, _ = average_bins(clean["sparse-32"], case_geometry("sparse-32"), 4)
    noisy, std = gaussian(wide, 0.04)
    assert 0.95 < float((std_through_object(noisy) / std).mean()) < 1.15
    noisy, std = gaussian(clean["sparse-32"][..., 60:123].contiguous(), 0.04)
    assert 0.85 < float((std_through_object(noisy) / std).mean()) < 1.1


@pytest.mark.slow
def test_without_noise_the_estimate_is_the_texture(clean: dict[str, torch.Tensor]) -> None:
    for case in ("sparse-32", "sparse-8"):
        ratio = std_through_object(clean[case]) / clean[case].mean((1, 2, 3))
        assert float(ratio.min()) > 0
        assert float(ratio.median()) < 0.0025
        assert float(ratio.max()) < 0.02


@pytest.mark.parametrize("std", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("views", [1, 8, 24, 60])
def test_white_noise_on_smooth_data(std: float, views: int) -> None:
    noisy = smooth(views) + std * torch.randn(8, 1, views, 160, generator=torch.Generator().manual_seed(0))
    ratio = std_through_object(noisy) / std
    assert abs(float(ratio.mean()) - 1) < (0.25 if views == 1 else 0.08)
    local = noise_map(noisy) / std
    assert abs(float(local.log().median())) < 0.15
    assert local.shape == noisy.shape


def test_the_map_of_counted_photons_follows_the_rays() -> None:
    sinogram = smooth(60).expand(10, 1, 60, 160)
    noisy, std = counted(sinogram, 1e4, 4.0)
    estimate = noise_map(noisy)
    assert float((estimate / std).log().square().mean().sqrt()) < 0.12
    torch.testing.assert_close(std_through_object(noisy), through_object(estimate, sinogram), rtol=0.02, atol=0)
    order = sinogram[0, 0, 0, :80].argsort()
    rising = estimate[0, 0, 0, :80][order]
    assert float((rising.diff() / rising[1:]).min()) > -0.05, "up to the noise of the smoothed values"


def test_noise_beside_the_object_is_told_from_noise_of_photons() -> None:
    """Strong noise behind the object, weak noise beside it: the estimate is for the rays through the object."""
    sinogram = smooth(60)
    noisy, std = counted(sinogram, 1e4, 4.0)
    assert float(std_through_object(noisy)) > 2.5 * float(std.min())


def test_the_estimate_has_the_scale_of_the_data() -> None:
    noisy = smooth() + 0.02 * torch.randn(6, 1, 24, 160, generator=torch.Generator().manual_seed(0))
    assert torch.equal(std_through_object(noisy * 1024), std_through_object(noisy) * 1024)
    for scale in (1e-12, 3.7, 1e9):
        torch.testing.assert_close(
            std_through_object(noisy * scale), std_through_object(noisy) * scale, rtol=1e-3, atol=0
        )
        torch.testing.assert_close(noise_map(noisy * scale), noise_map(noisy) * scale, rtol=1e-3, atol=0)


def test_a_sinogram_does_not_depend_on_the_batch() -> None:
    noisy = smooth() + 0.02 * torch.randn(6, 1, 24, 160, generator=torch.Generator().manual_seed(0))
    before = noisy.clone()
    together = std_through_object(noisy)
    apart = torch.cat([std_through_object(single) for single in noisy.split(1)])
    torch.testing.assert_close(together, apart, rtol=1e-6, atol=0)
    assert torch.equal(together, std_through_object(noisy))
    assert torch.equal(noisy, before)


def test_padding_does_not_count() -> None:
    """A padded batch gives what each sinogram gives by itself, also with NaN in the padding."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(24, 160), (9, 100), (40, 183), (5, 60)]
    singles = [smooth(*size) + 0.02 * torch.randn(1, 1, *size, generator=generator) for size in sizes]
    padded = torch.full((4, 1, 44, 200), torch.nan)
    for k, single in enumerate(singles):
        padded[k, :, : single.shape[2], : single.shape[3]] = single[0]
    counts = torch.tensor(sizes)
    std, local = std_through_object(padded, counts), noise_map(padded, counts)
    assert torch.isfinite(local).all()
    for k, single in enumerate(singles):
        torch.testing.assert_close(std[k : k + 1], std_through_object(single), rtol=1e-5, atol=0)
        valid = local[k : k + 1, :, : single.shape[2], : single.shape[3]]
        torch.testing.assert_close(valid, noise_map(single), rtol=1e-5, atol=0)


def test_correlated_noise_is_corrected_where_many_rays_are_beside_the_object() -> None:
    noise = torch.randn(10, 1, 60, 162, generator=torch.Generator().manual_seed(0))
    blurred = (noise[..., :-2] + 2 * noise[..., 1:-1] + noise[..., 2:]) / math.sqrt(6)
    assert abs(float((std_through_object(smooth(60) + 0.02 * blurred) / 0.02).mean()) - 1) < 0.1
    few = std_through_object(smooth(8) + 0.02 * blurred[:, :, :8]) / 0.02
    assert 0.3 < float(few.mean()) < 0.4, "as the docstring says"


def test_data_without_noise_and_extreme_data_give_small_positive_numbers() -> None:
    assert 0 < float(std_through_object(smooth())) < 1e-3
    assert float(std_through_object(torch.zeros(1, 1, 8, 20))) > 0
    constant = std_through_object(torch.full((1, 1, 8, 20), 5.0))
    torch.testing.assert_close(constant, torch.tensor([5 * LEAST]), rtol=0.5, atol=0)
    assert float(std_through_object(-torch.ones(1, 1, 8, 20))) > 0
    assert torch.isfinite(std_through_object(torch.randn(3, 1, 1, 4))).all()
    assert std_through_object(torch.randn(3, 1, 8, 40).half()).dtype == torch.float16


def test_masked_rays_do_not_count() -> None:
    """Values beside the object that were set to 0 are not measured ones."""
    noisy = smooth(60) + 0.02 * torch.randn(10, 1, 60, 160, generator=torch.Generator().manual_seed(0))
    masked = torch.where(smooth(60) < 0.01, 0.0, noisy)
    assert abs(float((std_through_object(masked) / 0.02).mean()) - 1) < 0.15


@pytest.mark.parametrize("stencil", STENCILS)
def test_stencils_keep_the_variance_of_white_noise(stencil) -> None:
    noise = torch.randn(40, 40, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    differences = stencil.differences(noise)
    assert differences.shape == stencil.means(noise).shape
    assert tuple(differences.shape[1:]) == (40 - stencil.extent[0], 200 - stencil.extent[1])
    assert float(differences.std()) == pytest.approx(1, abs=0.03)
    # The variance of a mean of squares says how many of them are independent.
    independent = 2 / (differences**2).mean((1, 2)).var() / differences[0].numel()
    assert float(independent) == pytest.approx(1 / stencil.overlap, rel=0.6)
    polynomial = (torch.arange(40.0)[:, None] if stencil.axis == -2 else torch.arange(200.0)).double() ** 2 / 1e3
    assert float(stencil.differences(polynomial.expand(1, 40, 200)).abs().max()) < 1e-9


@pytest.mark.parametrize(
    ("sinogram", "counts", "message"),
    [
        (torch.zeros(2, 8, 20), None, "batch, 1, views, bins"),
        (torch.zeros(2, 1, 8, 20, dtype=torch.int32), None, "floating-point"),
        (torch.zeros(2, 1, 8, 3), None, "more than 3 bins"),
        (torch.zeros(2, 1, 8, 20), torch.zeros(3, 2), r"shape \(2, 2\)"),
    ],
)
def test_bad_input_is_named(sinogram: torch.Tensor, counts: torch.Tensor | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        std_through_object(sinogram, counts)
    with pytest.raises(UserError, match=message):
        noise_map(sinogram, counts)


@pytest.mark.gpu
def test_the_estimate_is_the_same_on_a_gpu() -> None:
    noisy = smooth() + 0.02 * torch.randn(6, 1, 24, 160, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([[24, 160], [20, 150]] * 3)
    on_gpu = std_through_object(noisy.cuda(), counts.cuda()).cpu()
    torch.testing.assert_close(on_gpu, std_through_object(noisy, counts), rtol=1e-3, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_measured_tooth_has_the_noise_of_its_photons(data_folder: Path, step: int) -> None:
    """The noise that repeated flats say: variance of the counts = gain x counts."""
    file = np.load(data_folder / "sino_tooth.npz")
    dark = file["dark"].mean(0)
    flats = file["flat"] - dark
    flats = flats / flats.mean(2, keepdims=True) * flats.mean()  # the beam varies from flat to flat
    gain = float(np.median(flats.var(0, ddof=1) / flats.mean(0)))
    std = torch.from_numpy(np.sqrt(gain / (file["raw"] - dark))).transpose(0, 1)[:, None, ::step]
    sinogram = torch.from_numpy(file["sino"])[:, None, ::step]
    ratio = std_through_object(sinogram) / through_object(std, sinogram)
    assert 0.9 < float(ratio.min()) <= float(ratio.max()) < 1.25
