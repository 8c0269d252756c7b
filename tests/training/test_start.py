"""Where a block starts: warm weights, features brought back to life, scales."""

import math

import pytest
import torch

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks import heteroscedastic
from bayescade.blocks.sampling import MeanWeights
from bayescade.blocks.settings import BlockSettings
from bayescade.training.start import copy_weights, rescale, revive, start_block
from tests.training.stages import stage_of, tensors_of
from tests.training.test_greedy import make


def test_a_warm_start_has_the_weights_but_not_their_standard_deviations() -> None:
    previous, block = make(torch.Generator().manual_seed(1)), make(torch.Generator().manual_seed(2))
    for layer in previous.layers:
        assert isinstance(layer, MeanFieldConv)
        torch.nn.init.zeros_(layer.log_std)  # the prior's, as for features that never occur
    copy_weights(block, previous)
    assert torch.equal(block.last.weight, previous.last.weight)
    for layer in block.layers:
        assert isinstance(layer, MeanFieldConv)
        assert float(layer.log_std.max()) < -8


def test_scales_follow_the_images() -> None:
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    rescale(block, stage)
    assert float((tensors_of(stage)[1] * block.input_scale).std()) == pytest.approx(0.3)
    assert float(block.output_scale) == pytest.approx(20 * math.sqrt(stage.mse()))
    untouched = make(torch.Generator().manual_seed(1))
    start_block(untouched, block, stage, "fresh")
    assert float(untouched.output_scale) == float(untouched.input_scale) == 1


def test_features_that_are_never_there_start_afresh_with_no_say() -> None:
    settings = BlockSettings(channels=4, variance="features")
    block = heteroscedastic.build(settings, torch.Generator().manual_seed(1)).double()
    fresh = {name: value.clone() for name, value in block.state_dict().items()}
    stage = stage_of()
    rescale(block, stage)
    dead = {"trunk.image.2": 5, "trunk.gradient.0": 1, "trunk.common.2": 2}
    with torch.no_grad():
        for name, channel in dead.items():
            layer = block.get_submodule(name)
            assert isinstance(layer, torch.nn.Conv2d)
            assert layer.bias is not None
            layer.bias[channel] = -1e3
            layer.weight[channel] += 1  # not that of a fresh block, either
    state, inputs, _ = tensors_of(stage)
    before = block(state, inputs, MeanWeights())
    kept = {name: value.clone() for name, value in block.state_dict().items()}
    assert revive(block, fresh, state, inputs, least=1e-6).tolist() == [False, False, True, False]
    after = block(state, inputs, MeanWeights())
    assert torch.allclose(after.mean, before.mean, rtol=0, atol=1e-12)
    assert before.variance is not None
    assert after.variance is not None
    assert torch.allclose(after.variance, before.variance, rtol=1e-9, atol=0)
    for name, channel in dead.items():
        for part in ("weight", "bias"):
            now = block.state_dict()[f"{name}.{part}"]
            assert torch.equal(now[channel], fresh[f"{name}.{part}"][channel])
    assert not block.last.weight[:, 2].any()
    first = block.get_submodule("trunk.common.0").state_dict()["weight"]
    old = [row for row in range(8) if not torch.equal(first[row], fresh["trunk.common.0.weight"][row])]
    assert old
    assert not first[old][:, 5].any()  # the image branch comes first
    assert not block.get_submodule("variance.body.0").state_dict()["weight"][:, 2 + 2].any()
    others = [channel for channel in range(4) if channel != 2]
    assert torch.equal(block.last.weight[:, others], kept["last.weight"][:, others])
