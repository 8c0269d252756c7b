"""The noise of a sinogram, estimated from fourth differences."""

import pytest
import torch
from torch.nn.functional import pad

from bayescade.physics.noise_level import noise_std

SHAPES = [(40, 120), (30, 100), (7, 64), (9, 70)]  # views and bins


@pytest.mark.parametrize("views", [8, 40])
def test_the_noise_is_estimated_beside_the_object(views: int) -> None:
    """White noise on a smooth sinogram that leaves the outer bins free; a tenth quantile reads a little low."""
    s = torch.linspace(-2, 2, 180)
    smooth = 50 * torch.exp(-(s**2) * 4).expand(3, 1, views, 180)
    std = torch.tensor([0.1, 1.0, 5.0]).reshape(3, 1, 1, 1)
    noisy = smooth + std * torch.randn(smooth.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(noise_std(noisy), std.flatten(), rtol=0.25, atol=0)
    assert torch.equal(noise_std(torch.rand(2, 1, 3, 4)), torch.zeros(2)), "too few bins to tell"
    masked = noisy.clone()
    masked[..., :60] = 0
    torch.testing.assert_close(noise_std(masked), std.flatten(), rtol=0.3, atol=0)
    assert torch.equal(noise_std(torch.zeros(2, 1, 3, 40)), torch.zeros(2))


def test_padding_does_not_count() -> None:
    sinograms = [
        torch.randn(1, 1, views, bins, generator=torch.Generator().manual_seed(views)) for views, bins in SHAPES
    ]
    padded = torch.cat([pad(y, (0, 120 - y.shape[-1], 0, 40 - y.shape[-2])) for y in sinograms])
    expected = torch.cat([noise_std(y) for y in sinograms])
    torch.testing.assert_close(noise_std(padded, SHAPES), expected)
    assert float((noise_std(padded) / expected).min()) < 0.9  # without the counts the padding does count
