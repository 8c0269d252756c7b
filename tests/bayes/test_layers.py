"""Random convolutions: divergence, marginal variance, and the mean over a region."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import conv2d, unfold

from bayescade.bayes.kl import kl_from_standard_normal
from bayescade.bayes.layers import MeanFieldConv, PlainConv


def layer_and_features(channels: int = 3, size: int = 6, images: int = 2) -> tuple[MeanFieldConv, Tensor]:
    generator = torch.Generator().manual_seed(3)
    layer = MeanFieldConv(channels, generator).double()
    with torch.no_grad():
        layer.log_std.copy_(torch.randn(layer.log_std.shape, generator=generator).double() * 0.5 - 1)
        layer.bias.fill_(0.2)
    h = torch.rand((images, channels, size, size), generator=generator, dtype=torch.float64)
    return layer, h


def test_the_divergence_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std = torch.randn((2, 5, 7), generator=generator).double()
    ours = kl_from_standard_normal(mean, log_std)
    theirs = kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0)).sum()
    assert float(ours) == pytest.approx(float(theirs), rel=1e-12)
    assert float(kl_from_standard_normal(torch.zeros(9), torch.zeros(9))) == 0


def test_weights_and_activations_have_one_marginal_variance() -> None:
    layer, h = layer_and_features()
    variance = layer.output_variance(h)
    generator = torch.Generator().manual_seed(1)
    samples = 20_000
    weights = layer.sample_weights(torch.randn((samples, 3, 3, 3), generator=generator).double())
    by_weights = layer.conv_shared_input(h, weights).reshape(samples, *h[:, :1].shape)
    noise = torch.randn((samples, *h[:, :1].shape), generator=generator).double()
    by_activations = torch.stack([layer.activations(h, one) for one in noise[:5000]])
    for sampled in (by_weights, by_activations):
        error = math.sqrt(2 / len(sampled))  # relative, of a Gaussian's sample variance
        assert ((sampled.var(0) / variance - 1).abs() < 5 * error).all()
        assert ((sampled.mean(0) - layer.mean(h)).abs() < 5 * (variance / len(sampled)).sqrt()).all()


def test_the_mean_over_a_region_tells_weights_from_activations() -> None:
    """Weights: sum_d s_d^2 (mean_i h_id)^2. Activations: (1/n^2) sum_i sum_d s_d^2 h_id^2, about n times smaller."""
    layer, h = layer_and_features(images=1)
    patches = unfold(h, 3, padding=1)[0]  # (features, pixels)
    variance = layer.std().detach().flatten() ** 2
    coherent = float((variance * patches.mean(1) ** 2).sum())
    independent = float((variance[:, None] * patches**2).sum()) / patches.shape[1] ** 2
    assert coherent > 5 * independent
    generator = torch.Generator().manual_seed(2)
    samples = 20_000
    layer.requires_grad_(False)
    weights = layer.sample_weights(torch.randn((samples, 3, 3, 3), generator=generator).double())
    by_weights = layer.conv_shared_input(h, weights).mean((1, 2, 3))
    noise = torch.randn((samples, 1, 1, 6, 6), generator=generator).double()
    by_activations = torch.stack([layer.activations(h, one).mean() for one in noise])
    error = 5 * math.sqrt(2 / samples)
    assert float(by_weights.var()) == pytest.approx(coherent, rel=error)
    assert float(by_activations.var()) == pytest.approx(independent, rel=error)


def test_every_sample_has_a_convolution_with_its_weights() -> None:
    layer, h = layer_and_features(images=4)
    noise = torch.randn((2, 3, 3, 3), generator=torch.Generator().manual_seed(4)).double()
    weights = layer.sample_weights(noise)
    expected = torch.cat(
        [conv2d(h[:2], weights[:1], layer.bias, padding=1), conv2d(h[2:], weights[1:], layer.bias, padding=1)]
    )
    assert torch.allclose(layer.conv_input_per_sample(h, weights), expected, rtol=1e-12)
    shared = layer.conv_shared_input(h[:2], weights)
    assert torch.allclose(shared[:2], expected[:2], rtol=1e-12)
    assert torch.allclose(shared, layer.conv_input_per_sample(h[:2].repeat(2, 1, 1, 1), weights), rtol=1e-12)


def test_nothing_is_added_on_the_way_to_a_sample() -> None:
    layer, h = layer_and_features()
    with torch.no_grad():
        layer.log_std.fill_(-40.0)
    noise = torch.randn(h[:, :1].shape, dtype=torch.float64)
    assert torch.allclose(layer.activations(h, noise), layer.mean(h), rtol=0, atol=1e-15)
    jittered = MeanFieldConv(3, torch.Generator().manual_seed(0)).double().requires_grad_(False)
    jittered.jitter = 1e-6
    with torch.no_grad():
        jittered.log_std.fill_(-40.0)
    assert float((jittered.activations(h, noise) - jittered.mean(h)).std()) == pytest.approx(1e-3, rel=0.5)


def test_a_dead_feature_has_a_gradient_without_nan() -> None:
    layer, h = layer_and_features()
    dead = torch.zeros_like(h)
    out = layer.activations(dead, torch.ones_like(dead[:, :1]))
    out.sum().backward()
    assert layer.log_std.grad is not None
    assert torch.isfinite(layer.log_std.grad).all()


def test_a_plain_convolution_has_no_chance() -> None:
    layer = PlainConv(3, torch.Generator().manual_seed(0))
    h = torch.rand(2, 3, 5, 5)
    assert not layer.random
    assert float(layer.kl().detach()) == 0
    assert torch.equal(layer.activations(h, torch.ones(2, 1, 5, 5)), layer.mean(h))
