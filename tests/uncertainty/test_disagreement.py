"""The variance from the disagreement of passes."""

import dataclasses

import numpy as np
import pytest
import torch

from bayescade.results import Reconstruction
from bayescade.uncertainty.disagreement import fit_ratio, fitted, variance_of


def maps() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.rand(2, 1, 24, 24, generator=generator) + 0.1 for _ in range(2))  # type: ignore[return-value]


def test_the_mean_variance_is_that_of_the_disagreement() -> None:
    aleatoric, between = maps()
    variance = variance_of(aleatoric, between, 4.0)
    torch.testing.assert_close(variance.mean((1, 2, 3)), 16 * between.mean((1, 2, 3)))


def test_uniform_maps_give_a_uniform_variance_and_units_are_squared() -> None:
    ones = torch.ones(1, 1, 16, 16)
    assert variance_of(3 * ones, 2 * ones, 5.0).unique().tolist() == [50.0]
    aleatoric, between = maps()
    torch.testing.assert_close(variance_of(9 * aleatoric, 9 * between, 2.0), 9 * variance_of(aleatoric, between, 2.0))


def test_both_sources_count_alike() -> None:
    """Where the network says four times as much, the variance is twice as large."""
    aleatoric = torch.ones(1, 1, 16, 16)
    aleatoric[..., 8:] = 4
    variance = variance_of(aleatoric, torch.ones_like(aleatoric), 1.0)
    assert float(variance[0, 0, 0, 15] / variance[0, 0, 0, 0]) == pytest.approx(2, rel=0.01)
    assert variance_of(aleatoric, torch.zeros_like(aleatoric), 1.0).abs().max() == 0


def test_the_parts_add_up_to_the_total() -> None:
    aleatoric, between = maps()
    result = Reconstruction(
        torch.ones_like(between), "m", aleatoric=aleatoric, epistemic=between, epistemic_symmetries=between
    )
    better = fitted(result, 8, 3.0)
    assert better.epistemic is result.epistemic
    torch.testing.assert_close(better.variance, variance_of(aleatoric, between * 8 / 7, 3.0))
    tiny = fitted(result, 8, 0.1)  # the epistemic variance alone is more than the formula says
    torch.testing.assert_close(tiny.variance, 1.05 * between)
    assert fitted(result, 1, 3.0) is result
    without = dataclasses.replace(result, epistemic_symmetries=None)
    assert fitted(without, 8, 3.0) is without


def test_the_ratio_is_found_and_faults_do_not_change_it() -> None:
    rng = np.random.default_rng(0)
    disagreement = np.exp(rng.normal(-5, 2, 1000))
    found = 4.0 * disagreement * np.abs(1 + 0.1 * rng.standard_normal(1000))
    found[:10] *= 100
    assert fit_ratio(found.tolist(), disagreement.tolist()) == pytest.approx(4.0, rel=0.02)
