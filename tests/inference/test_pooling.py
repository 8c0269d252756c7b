"""Results of several passes as one: the law of total variance."""

import pytest
import torch

from bayescade.inference.pooling import concatenated, pooled
from bayescade.methods._passes import balanced
from bayescade.results import Reconstruction


def test_the_variance_of_all_samples_is_that_within_plus_that_between() -> None:
    """Against the moments of all samples at once, in float64."""
    generator = torch.Generator().manual_seed(0)
    counts = (3, 5, 2)
    samples = [torch.randn(n, 2, 1, 3, 4, generator=generator, dtype=torch.float64) + k for k, n in enumerate(counts)]
    parts = [
        (len(some), Reconstruction(some.mean(0), "m", aleatoric=(some**2).mean(0), epistemic=some.var(0, correction=0)))
        for some in samples
    ]
    result, together = pooled(parts), torch.cat(samples)
    assert result.epistemic is not None
    assert result.epistemic_symmetries is not None
    torch.testing.assert_close(result.image, together.mean(0))
    torch.testing.assert_close(result.epistemic, together.var(0, correction=0))
    torch.testing.assert_close(result.aleatoric, (together**2).mean(0))
    means = torch.cat([some.mean(0, keepdim=True).expand_as(some) for some in samples])
    torch.testing.assert_close(result.epistemic_symmetries, means.var(0, correction=0))


def test_one_part_stays_as_it_is_and_batches_follow_each_other() -> None:
    first, second = (Reconstruction(torch.full((2, 1, 3, 3), value), "m") for value in (1.0, 2.0))
    assert pooled([(4, first)]) is first
    both = concatenated([first, second])
    assert both.image[:, 0, 0, 0].tolist() == [1, 1, 2, 2]
    assert both.aleatoric is None
    assert pooled([(1, first), (3, second)]).image.unique().tolist() == [1.75]


def test_standard_errors_of_a_mean() -> None:
    """Two parts of equal size: sqrt(e1^2 + e2^2) / 2."""
    maps = [torch.full((1, 1, 2, 2), value) for value in (3.0, 4.0)]
    parts = [(1, Reconstruction(m, "m", aleatoric=m, epistemic=m, image_standard_error=m)) for m in maps]
    error = pooled(parts).image_standard_error
    assert error is not None
    assert error.unique().tolist() == [2.5]


def part_of(image: torch.Tensor) -> Reconstruction:
    """A pass with an image and constant variances."""
    return Reconstruction(image, "x", aleatoric=torch.full_like(image, 0.5), epistemic=torch.full_like(image, 0.25))


def test_parts_of_the_variance_add_up_and_the_centre_gets_its_own() -> None:
    """Images a + slope * deviation + noise: the geometry part is slope^2, the rest that of the noise."""
    deviations = balanced([1] * 8)
    noise = 0.1 * torch.randn(8, 2, 1, 300, 300, generator=torch.Generator().manual_seed(0)).double()
    parts = [(1, part_of(3 + 0.7 * d + noise[k])) for k, d in enumerate(deviations)]
    result = pooled(parts, deviations)
    assert result.geometry_variance is not None
    assert result.epistemic_symmetries is not None
    images = torch.stack([part.image for _, part in parts])
    assert torch.allclose(result.variance, images.var(0, correction=0) + 0.75)  # the law of total variance
    assert float(result.geometry_variance.mean()) == pytest.approx(0.49, rel=0.01)
    assert float(result.epistemic_symmetries.mean()) == pytest.approx(0.01 * 7 / 8, rel=0.03)


def test_a_centre_that_changes_nothing_has_hardly_a_part() -> None:
    """Without an effect the estimate, cut at zero, is a small part of what lies between the passes."""
    deviations = balanced([1] * 8)
    noise = torch.randn(8, 1, 1, 200, 200, generator=torch.Generator().manual_seed(0)).double()
    result = pooled([(1, part_of(values)) for values in noise], deviations)
    assert result.geometry_variance is not None
    assert float(result.geometry_variance.mean()) < 0.15 * float(noise.var(0, correction=0).mean())
    assert pooled([(1, part_of(values)) for values in noise]).geometry_variance is None
