"""Blocks of several image sizes: nothing is lost between sizes, any image size works, and far pixels are seen."""

import pytest
import torch
from torch import Tensor

from bayescade.blocks import deterministic, heteroscedastic
from bayescade.blocks.block import State
from bayescade.blocks.perturbation import PerturbationRunner
from bayescade.blocks.pyramid import AREA, EDGE, PyramidTrunk, doubled, halved, make_trunk
from bayescade.blocks.runner import PlainRunner
from bayescade.blocks.sampling import MeanWeights
from bayescade.blocks.settings import BlockSettings, PyramidSettings
from bayescade.blocks.trunk import BranchTrunk
from bayescade.errors import UserError
from bayescade.inference.monte_carlo import InferenceSettings
from bayescade.methods._cascade_settings import PRESETS, with_possible_runners
from bayescade.testing import check_block

SETTINGS = PyramidSettings(channels=2, memory_channels=1, variance="features", scales=3)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trunk(scales: int = 3) -> PyramidTrunk:
    settings = PyramidSettings(channels=2, memory_channels=1, scales=scales)
    made = make_trunk(settings, 2, torch.Generator().manual_seed(0)).double()
    assert isinstance(made, PyramidTrunk)
    return made


def test_squares_of_pixels_become_planes_without_loss() -> None:
    planes = random(2, 3, 6, 8)
    small = halved(planes)
    assert small.shape == (2, 3 * AREA, 3, 4)
    assert torch.equal(small, torch.nn.functional.pixel_unshuffle(planes, EDGE))
    assert torch.equal(doubled(small), planes)


def test_one_scale_is_the_block_of_the_paper() -> None:
    assert isinstance(make_trunk(BlockSettings(), 1, torch.Generator()), BranchTrunk)
    assert isinstance(make_trunk(PyramidSettings(), 1, torch.Generator()), BranchTrunk)


@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (12, 5)])
def test_any_image_size(shape: tuple[int, int]) -> None:
    block = heteroscedastic.build(SETTINGS, torch.Generator().manual_seed(0), 2).double()
    state = State(random(2, 1, *shape), random(2, 1, *shape, seed=1))
    prediction = block(state, random(2, 2, *shape, seed=2), MeanWeights())
    assert prediction.mean.shape == prediction.variance.shape == (2, 1, *shape)
    assert bool((prediction.variance > 0).all())


@pytest.mark.parametrize(("scales", "sees"), [(2, False), (4, True)])
def test_smaller_images_see_farther(scales: int, sees: bool) -> None:
    """A pixel that is 30 pixels away changes the features only through the smaller images."""
    planes = random(1, 2, 64, 64)
    changed = planes.clone()
    changed[..., 32, 2] += 1
    made = trunk(scales)
    image = random(1, 2, 64, 64, seed=1)
    difference = (made(image, planes) - made(image, changed)).abs()[0, :, 32, 33]
    assert bool((difference > 0).any()) is sees


def test_a_new_block_does_not_use_the_memory_of_the_block_before() -> None:
    made = trunk()
    image, inputs = random(1, 2, 8, 8), random(1, 2, 8, 8, seed=1)
    other = image.clone()
    other[:, 1] += 1
    assert torch.equal(made(image, inputs), made(other, inputs))
    other[:, 0] += 1
    assert not torch.equal(made(image, inputs), made(other, inputs))


def test_features_are_as_large_as_their_inputs() -> None:
    made = make_trunk(PyramidSettings(channels=16, scales=4), 3, torch.Generator().manual_seed(0)).double()
    features = made(random(4, 1, 32, 32), random(4, 3, 32, 32, seed=1))
    assert 0.3 < float(features.std()) < 3


def test_the_block_keeps_its_contract() -> None:
    for kind in (deterministic, heteroscedastic):
        check_block(kind.build(SETTINGS, torch.Generator().manual_seed(0), 2))


def test_only_torch_layers_compute_it() -> None:
    block = heteroscedastic.build(SETTINGS, torch.Generator().manual_seed(0), 1)
    state = State(torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8))
    with pytest.raises(UserError, match="use runner=auto or runner=plain"):
        PerturbationRunner(block).features(state, torch.rand(1, 1, 8, 8))
    assert PlainRunner(block).features(state, torch.rand(1, 1, 8, 8)).common.shape == (1, 2, 8, 8)
    preset = PRESETS["any"]
    possible = with_possible_runners(preset)
    assert (possible.fit.runner, possible.inference.runner) == ("plain", "plain")
    assert with_possible_runners(PRESETS["recommended"]).inference == InferenceSettings()


@pytest.mark.parametrize("scales", [0, 7])
def test_impossible_numbers_of_scales_are_named(scales: int) -> None:
    with pytest.raises(UserError, match="setting scales: expected a whole number from 1 to 6"):
        PyramidSettings(scales=scales)
