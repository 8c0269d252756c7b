"""The networks beside the cascade: what they are at the start, for any size, and that all of them learns."""

import pytest
import torch
from torch import nn

from bayescade.networks.primal_dual import PrimalDual
from bayescade.networks.unet import UNet
from bayescade.physics.operator import LinearOperator
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from tests.geometries import small_parallel


def unet(scales: int = 3) -> UNet:
    return UNet(4, 6, scales, torch.Generator().manual_seed(0))


def primal_dual(size: int = 9) -> PrimalDual:
    operator = ray_transform(small_parallel(size))
    return PrimalDual(InverseProblem(operator, norm=8.0), 3, 5, 6, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(8, 8), (9, 13), (1, 5)])
@pytest.mark.parametrize("scales", [1, 3])
def test_an_untrained_unet_gives_the_image_back(shape: tuple[int, int], scales: int) -> None:
    image = torch.randn((2, 1, *shape), generator=torch.Generator().manual_seed(1))
    assert torch.equal(unet(scales)(image, image), image)
    assert torch.equal(unet(scales).clipped(image, image), image.clamp_min(0))


def test_steps_of_zero_leave_the_first_image() -> None:
    network = primal_dual()
    for steps in (network.primal, network.dual):
        for step in steps:
            nn.init.zeros_(step[-1].weight)
    image = torch.randn((2, 1, 9, 9), generator=torch.Generator().manual_seed(1))
    assert torch.equal(network(image, network.operator.forward(image)), image)


@pytest.mark.parametrize("make", [unet, primal_dual])
def test_every_parameter_matters(make: type) -> None:
    network = make()
    generator = torch.Generator().manual_seed(2)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    image = torch.randn((2, 1, 9, 9), generator=generator)
    sinogram = ray_transform(small_parallel(9)).forward(image)
    slopes = torch.autograd.grad((network(image, sinogram) ** 2).sum(), list(network.parameters()))
    for (name, _), slope in zip(network.named_parameters(), slopes, strict=True):
        assert float(slope.abs().max()) > 0, name


def test_what_is_measured_is_seen() -> None:
    network = primal_dual()
    image = torch.randn((1, 1, 9, 9), generator=torch.Generator().manual_seed(1))
    sinogram = network.operator.forward(image)
    assert not torch.allclose(network(image, sinogram), network(image, sinogram + 1))


def test_gains_bring_the_operator_to_one_scale() -> None:
    network = primal_dual()
    image = torch.randn((4, 1, 9, 9), generator=torch.Generator().manual_seed(1))
    sinogram = network.operator.forward(image) * 1.1 + 0.01
    network.prepare(image, sinogram)
    residual = network.residual_gain * (network.operator.forward(image) - sinogram) / network.norm
    assert float(residual.std()) == pytest.approx(0.3)
    assert float((network.back_gain * network.operator.adjoint(residual) / network.norm).std()) == pytest.approx(0.3)


def test_the_operator_keeps_its_precision_where_layers_have_less(monkeypatch: pytest.MonkeyPatch) -> None:
    network = primal_dual()
    operator, seen = network.operator, []
    forward = type(operator).forward

    def watched(operator: LinearOperator, x: torch.Tensor) -> torch.Tensor:
        seen.append(forward(operator, x))
        return seen[-1]

    monkeypatch.setattr(type(operator), "forward", watched)
    image = torch.randn((1, 1, 9, 9), generator=torch.Generator().manual_seed(1))
    sinogram = operator.forward(image)
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        found = network(image, sinogram)
    assert found.dtype == torch.float32
    assert torch.equal(seen[0], sinogram), "the first projection is that of the image, in float32"
