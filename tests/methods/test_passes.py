"""Samples are shared out over symmetries, and the centres of the passes are standardised."""

import pytest

from bayescade.methods._passes import balanced, passes_of
from bayescade.physics.symmetries import SYMMETRIES


@pytest.mark.parametrize("weights", [[1, 1], [1] * 8, [3, 3, 2, 2, 2, 2, 2, 2], [5, 1, 1], [7, 2, 2, 2, 2]])
def test_deviations_have_mean_0_and_variance_1(weights: list[int]) -> None:
    deviations = balanced(weights)
    pairs = list(zip(weights, deviations, strict=True))
    assert sum(w * d for w, d in pairs) == pytest.approx(0, abs=1e-12)
    assert sum(w * d * d for w, d in pairs) / sum(weights) == pytest.approx(1)
    assert len(set(deviations)) == len(weights)


@pytest.mark.parametrize("samples", [0, 1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("symmetries", [1, 4, 8])
def test_every_sample_has_its_pass(samples: int, symmetries: int) -> None:
    passes = passes_of(samples, symmetries)
    assert sum(part.samples for part in passes) == max(samples, 1)
    assert [part.symmetry for part in passes] == list(SYMMETRIES[: len(passes)])
    assert max(part.samples for part in passes) - min(part.samples for part in passes) <= 1
    if len(passes) == 1:
        assert passes[0].deviation == 0
