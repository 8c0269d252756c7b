"""Samples by differences: the same numbers as the blocks themselves, and when they are taken."""

import pytest
import torch
from torch import Tensor

from bayescade.blocks import deterministic, heteroscedastic, homoscedastic
from bayescade.blocks.block import BlockSettings
from bayescade.errors import UserError
from bayescade.inference import monte_carlo
from bayescade.inference.monte_carlo import InferenceSettings, SampleRun, Start, WholeBlock, estimate, sample
from bayescade.inference.perturbation import Layers, near_blocks, near_bytes, trunk_convolutions
from bayescade.networks.cascade import Cascade, Data
from bayescade.projectors import ray_transform
from tests.geometries import small_parallel
from tests.inference.test_monte_carlo import SIZE, cascade_of, data_of


def exactly(cascade: Cascade, data: Data, first: Tensor) -> tuple[Cascade, Data, Tensor]:
    """The same in float64."""
    operator = ray_transform(small_parallel(SIZE), dtype=torch.float64)
    return cascade.double(), Data(operator, data.norm, data.sinogram.double()), first.double()


@pytest.mark.parametrize("change", [1e-4, 1.0, 100.0])
def test_layers_take_any_change(change: float) -> None:
    block = cascade_of(1).double().block(0)
    generator = torch.Generator().manual_seed(1)
    at = torch.rand((2, 2, 6, 6), generator=generator, dtype=torch.float64)
    inputs = at.repeat(3, 1, 1, 1) + change * torch.randn((6, 2, 6, 6), generator=generator, dtype=torch.float64)
    layers = Layers(trunk_convolutions(block.trunk), at, torch.float64)
    assert torch.allclose(layers.output, block.trunk(at[:, :1], at[:, 1:]), rtol=1e-12)
    assert torch.allclose(layers(inputs), block.trunk(inputs[:, :1], inputs[:, 1:]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [heteroscedastic, homoscedastic])
@pytest.mark.parametrize("analytic", [True, False])
@pytest.mark.parametrize("sees", ["inputs", "features"])
def test_draws_are_those_of_the_blocks(kind: object, analytic: bool, sees: str) -> None:
    settings = BlockSettings(channels=3, variance_floor=1e-9, variance_input=sees)
    made = [kind.build(settings, torch.Generator().manual_seed(place)) for place in range(3)]  # type: ignore[attr-defined]
    for block in made:
        torch.nn.init.constant_(block.last.log_std, -2.0)
        block.output_scale.fill_(0.7)
    cascade, data, first = exactly(Cascade(made).requires_grad_(False), *data_of())
    blocks = [cascade.block(place) for place in range(len(cascade))]

    def drawn(near: bool) -> SampleRun:
        whole = [WholeBlock(block) for block in blocks]
        applied = near_blocks(blocks, data, first, torch.float64) if near else whole
        return sample(applied, data, Start.of(applied[0], data, first), "weights", range(5), 3, 0, analytic)

    one, other = drawn(True), drawn(False)
    assert torch.allclose(one.mean, other.mean, rtol=1e-9, atol=1e-12)
    assert one.mean.var(0).max() > 1e-4
    for left, right in ((one.variance, other.variance), (one.aleatoric, other.aleatoric)):
        assert (left is None) == (right is None)
        if left is not None and right is not None:
            assert torch.allclose(left, right, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("spread", [-9.0, -3.0])
def test_bfloat16_tells_the_doubt_of_any_size(spread: float) -> None:
    cascade, (data, first) = cascade_of(4, spread), data_of()
    plain, narrow = (
        estimate(cascade, data, first, InferenceSettings(kernels=kernels), samples=30, seed=0)
        for kernels in ("plain", "differences")
    )
    doubt = plain.epistemic.sqrt()
    there = doubt > 1e-3 * doubt.max()
    assert ((narrow.epistemic.sqrt() / doubt - 1)[there].abs() < 0.01).all()
    assert ((narrow.image - plain.image).abs() < 0.01 * doubt.max() + 1e-6).all()
    assert narrow.aleatoric is not None
    assert plain.aleatoric is not None
    assert torch.allclose(narrow.aleatoric, plain.aleatoric, rtol=0.01)


def test_when_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cascade, first = cascade_of(2), data_of()[1]
    blocks = [cascade.block(place) for place in range(2)]
    assert near_bytes(blocks, first, torch.bfloat16) == 2 * 2 * (2 * 3 + 4 * 3 + 2 * 3 + 3) * first.numel() * 2

    def taken(room: int = 10**12, bfloat16: bool = True, **settings: str) -> bool:
        monkeypatch.setattr(monte_carlo, "MOST_NEAR", room)
        monkeypatch.setattr(monte_carlo, "has_bfloat16", lambda: bfloat16)
        return monte_carlo.by_differences(InferenceSettings(**settings), blocks, first)  # type: ignore[arg-type]

    assert taken()
    assert not taken(room=1000)
    assert not taken(bfloat16=False)
    assert not taken(draws="activations")
    assert not taken(kernels="plain")
    assert taken(bfloat16=False, kernels="differences")
    with pytest.raises(UserError, match="differences are for draws=weights"):
        InferenceSettings(kernels="differences", draws="activations")


def test_without_chance_there_are_no_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monte_carlo, "near_blocks", lambda *arguments: pytest.fail("nothing is drawn"))
    data, first = data_of()
    settings = InferenceSettings(kernels="differences")
    found = estimate(cascade_of(2, kind=deterministic), data, first, settings, samples=5, seed=0)
    assert found.samples == 1
