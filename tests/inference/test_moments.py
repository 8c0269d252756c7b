"""Streaming moments against all samples at once, and their standard errors against repetition."""

import numpy as np
import pytest
import torch

from bayescade.inference.moments import StreamingMoments


def samples(number: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = 5 + 1e-4 * torch.randn((number, 2, 1, 3, 3), generator=generator, dtype=torch.float64)
    variance = 1e-8 * torch.rand((number, 2, 1, 3, 3), generator=generator, dtype=torch.float64)
    aleatoric = 1e-3 * (1 + torch.rand((number, 2, 1, 3, 3), generator=generator, dtype=torch.float64))
    return mean, variance, aleatoric


@pytest.mark.parametrize("cuts", [[40], [1, 9, 30], [10, 10, 10, 10]])
def test_streaming_is_the_same_as_all_at_once(cuts: list[int]) -> None:
    mean, variance, aleatoric = samples(40)
    moments = StreamingMoments()
    for parts in zip(mean.split(cuts), variance.split(cuts), aleatoric.split(cuts), strict=True):
        moments.add(*parts)
    found = moments.estimate()
    assert found.samples == 40
    assert torch.allclose(found.image, mean.mean(0), rtol=1e-14)
    assert torch.allclose(found.epistemic, variance.mean(0) + mean.var(0, correction=0), rtol=1e-9)
    assert torch.allclose(found.aleatoric, aleatoric.mean(0), rtol=1e-12)
    assert torch.allclose(found.image_error, mean.std(0) / 40**0.5, rtol=1e-9)
    assert torch.allclose(found.aleatoric_error, aleatoric.std(0) / 40**0.5, rtol=1e-9)
    terms = variance + (mean - mean.mean(0)) ** 2  # what the epistemic variance is the mean of
    assert torch.allclose(found.epistemic_error, terms.std(0) / 40**0.5, rtol=1e-6)


def test_single_precision_samples_do_not_cancel() -> None:
    """A std of 1e-5 around 1: the square of the mean is 10^10 times the variance."""
    generator = torch.Generator().manual_seed(1)
    mean = 1 + 1e-5 * torch.randn((500, 1, 1, 4, 4), generator=generator)
    moments = StreamingMoments()
    for part in mean.split(7):
        moments.add(part, None, None)
    found = moments.estimate()
    assert torch.allclose(found.epistemic, mean.double().var(0, correction=0), rtol=1e-9)
    assert found.aleatoric is None


def test_standard_errors_are_the_std_over_repetitions() -> None:
    number, repetitions = 100, 2000
    generator = torch.Generator().manual_seed(2)
    a = torch.randn((number, repetitions, 1, 1, 1), generator=generator, dtype=torch.float64)
    v = (0.5 * a + torch.randn(a.shape, generator=generator, dtype=torch.float64)) ** 2  # not independent of a
    moments = StreamingMoments()
    moments.add(a, v, None)
    found = moments.estimate()
    for value, error in (
        (found.image, found.image_error),
        (found.epistemic, found.epistemic_error),
        (found.epistemic.sqrt(), found.epistemic_std_error),
    ):
        claimed = float(error.square().mean().sqrt())
        assert claimed == pytest.approx(float(value.std()), rel=0.12)


def test_the_error_of_a_variance_of_a_hundred_samples_is_a_seventh() -> None:
    mean = torch.from_numpy(np.random.default_rng(3).normal(size=(100, 50, 1, 5, 5)))
    moments = StreamingMoments()
    moments.add(mean, None, None)
    found = moments.estimate()
    assert float((found.epistemic_error / found.epistemic).mean()) == pytest.approx(2**0.5 / 10, rel=0.05)
    assert found.relative_error() == pytest.approx(0.0707, rel=0.05)
