"""The shipped checks catch what they are for."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from bayescade.noise import gaussian
from bayescade.phantoms import ellipses
from bayescade.physics.fidelity import Fidelity
from bayescade.physics.geometry import ParallelBeam
from bayescade.physics.operator import LinearOperator
from bayescade.results import Reconstruction, Reconstructor
from bayescade.testing import check_fidelity, check_method, check_metric, check_noise, check_operator, check_phantom


class Matrix(LinearOperator):
    domain_shape, range_shape = (1, 3, 4), (1, 2, 5)

    def __init__(self, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.matrix = torch.randn(10, 12, generator=generator, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(-3) @ self.matrix.T).unflatten(-1, self.range_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        return (y.flatten(-3) @ self.matrix).unflatten(-1, self.domain_shape)


class WrongAdjoint(Matrix):
    def adjoint(self, y: Tensor) -> Tensor:
        return super().adjoint(y) * (1 + 1e-9)


class Affine(Matrix):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Detached(Matrix):
    def forward(self, x: Tensor) -> Tensor:
        return (2 * super().forward(x)).detach() - super().forward(x)


class MixedBatch(Matrix):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 0.1 * y.mean(-4, keepdim=True) if y.ndim == 4 and len(y) > 1 else y


def test_a_good_operator_passes() -> None:
    check_operator(Matrix(), dtype=torch.float64, gradients=True)


@pytest.mark.parametrize("operator", [WrongAdjoint, Affine, Detached, MixedBatch])
def test_a_wrong_operator_is_caught(operator: type[Matrix]) -> None:
    with pytest.raises(AssertionError):
        check_operator(operator(), dtype=torch.float64)


class WrongGradient(Fidelity):
    def value(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return ((projection - sinogram) ** 2).flatten(1).sum(1)

    def gradient(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return projection - sinogram

    def curvature(self, sinogram: Tensor) -> Tensor:
        return torch.ones_like(sinogram)

    def conjugate(self, sinogram: Tensor, dual: Tensor) -> Tensor:
        return (dual * (dual / 2 + sinogram)).flatten(1).sum(1)

    def prox_conjugate(self, sinogram: Tensor, dual: Tensor, step: Tensor | float) -> Tensor:
        return (dual - step * sinogram) / (1 + step)


def test_a_wrong_gradient_is_caught() -> None:
    with pytest.raises(AssertionError, match="gradient"):
        check_fidelity(WrongGradient(), torch.rand(2, 1, 3, 4, dtype=torch.float64))


def test_a_wrong_metric_is_caught() -> None:
    with pytest.raises(AssertionError, match="one number per image"):
        check_metric(lambda x, t, r: (x - t).abs().mean(), lambda x, t, r: float((x - t).abs().mean()))
    with pytest.raises(AssertionError, match="expected"):
        check_metric(lambda x, t, r: (x - t).abs().mean((1, 2, 3)), lambda x, t, r: float((x - t).abs().mean() / r))


class Careless(Reconstructor):
    name = "careless"
    geometry = ParallelBeam([0.1, 0.2], bins=4, image_shape=(3, 3))

    def __init__(self, fault: str):
        self.fault = fault
        self.data_shape = (1, *self.geometry.sinogram_shape)

    def reconstruct(self, sinogram: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        image = torch.zeros(2, 1, 3, 3)
        if self.fault == "changes":
            sinogram += 1
        if self.fault == "random":
            image = torch.rand(2, 1, 3, 3)
        if self.fault == "nan":
            image = image / 0
        if self.fault == "negative":
            return Reconstruction(image, "x", self.geometry.to_json(), aleatoric=image - 1)
        return Reconstruction(image, "x", "{}" if self.fault == "geometry" else self.geometry.to_json())


@pytest.mark.parametrize("fault", ["changes", "random", "nan", "negative", "geometry"])
def test_a_careless_method_is_caught(fault: str) -> None:
    check_method(Careless(""), Careless.geometry)
    with pytest.raises(AssertionError):
        check_method(Careless(fault), Careless.geometry)


def careless_phantom(fault: str) -> SimpleNamespace:
    def generate(count, shape, *, seed, first, supersample, device):
        if fault == "ignores first":
            first = 0
        if fault == "ignores supersample":
            supersample = 1
        images = ellipses.generate(count, shape, seed=seed, first=first, supersample=supersample, device=device)
        return {"range": 255 * images, "double": images.double(), "shape": images[:, 0]}.get(fault, images)

    return SimpleNamespace(generate=generate)


@pytest.mark.parametrize("fault", ["ignores first", "ignores supersample", "range", "double", "shape"])
def test_a_careless_phantom_is_caught(fault: str) -> None:
    check_phantom(careless_phantom(""))
    with pytest.raises(AssertionError, match="expected"):
        check_phantom(careless_phantom(fault))


def careless_noise(fault: str) -> SimpleNamespace:
    def add(sinogram, settings, *, generators):
        if fault == "changes":
            sinogram += 1
        if fault == "global":
            return sinogram + torch.randn(sinogram.shape)
        if fault == "one generator":
            return sinogram + torch.randn(sinogram.shape, generator=generators[0])
        if fault == "none":
            return sinogram.clone()
        return gaussian.add(sinogram, settings, generators=generators)

    describe = (lambda _: "") if fault == "no words" else gaussian.describe
    return SimpleNamespace(Settings=gaussian.Settings, add=add, describe=describe)


@pytest.mark.parametrize("fault", ["changes", "global", "one generator", "none", "no words"])
def test_a_careless_noise_model_is_caught(fault: str) -> None:
    check_noise(careless_noise(""))
    with pytest.raises(AssertionError):
        check_noise(careless_noise(fault))
