"""Conformance checks that ship with us: a new operator's test is one call.

Each check raises `AssertionError` with the figure that was too large. Tolerances are arguments; their defaults are those of
our own tests.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from bayescade.physics.fidelity import Fidelity
from bayescade.physics.geometry import Geometry
from bayescade.physics.linalg import adjoint_error
from bayescade.physics.operator import LinearOperator
from bayescade.results import Reconstruction, Reconstructor

ADJOINT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
LINEAR_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def check_operator(
    operator: LinearOperator,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    gradients: bool = False,  # also check first and second derivatives numerically: float64 and small operators only
) -> None:
    """Shapes, linearity, batches, the adjoint and differentiability of a linear operator."""
    x = _random((3, *operator.domain_shape), dtype, device, seed)
    y = _random((3, *operator.range_shape), dtype, device, seed + 1)
    forward, adjoint = operator.forward(x), operator.adjoint(y)
    _expect_shape("forward", forward, y)
    _expect_shape("adjoint", adjoint, x)

    for name, apply, v in (("forward", operator.forward, x), ("adjoint", operator.adjoint, y)):
        together = apply(v)
        one_by_one = torch.cat([apply(one) for one in v.tensor_split(len(v))])
        _expect_close(f"{name} of a batch and of its images", together, one_by_one, LINEAR_TOLERANCE[dtype])
        _expect_close(
            f"{name}(2 a - b)", apply(2 * v[:1] - v[1:2]), 2 * together[:1] - together[1:2], LINEAR_TOLERANCE[dtype]
        )
        _expect_shape(f"{name} of samples", apply(v[None].expand(2, *v.shape)), together.expand(2, *together.shape))

    error = adjoint_error(operator, x, y)
    assert error < ADJOINT_TOLERANCE[dtype], (
        f"adjoint: relative mismatch {error:.2e}, expected {ADJOINT_TOLERANCE[dtype]:.0e}"
    )
    _check_backward(operator, x, y, dtype)
    if gradients:
        for apply, v in ((operator.forward, x[:1]), (operator.adjoint, y[:1])):
            leaf = v.clone().requires_grad_()
            assert gradcheck(apply, (leaf,)), "first derivative is wrong"
            assert gradgradcheck(lambda u, apply=apply: apply(u) ** 2, (leaf,)), "second derivative is wrong"


def _check_backward(operator: LinearOperator, x: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    """d<y, A x>/dx = A'y and d<x, A'y>/dy = A x."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(operator.forward(leaf), leaf, y)
    _expect_close("gradient of the forward", gradient, operator.adjoint(y), LINEAR_TOLERANCE[dtype])
    leaf = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(operator.adjoint(leaf), leaf, x)
    _expect_close("gradient of the adjoint", gradient, operator.forward(x), LINEAR_TOLERANCE[dtype])


def check_fidelity(
    fidelity: Fidelity,
    sinogram: Tensor,  # (batch, ...), float64
    *,
    seed: int = 0,
) -> None:
    """One value per image, at least 0, zero at z = y, convex along a line, the gradient and the curvature autograd finds,
    and the conjugate with its proximal map."""
    sinogram = sinogram.double()
    projection = (
        sinogram + 0.3 * _random(tuple(sinogram.shape), torch.float64, sinogram.device, seed)
    ).requires_grad_()
    value = fidelity.value(sinogram, projection)
    (expected,) = torch.autograd.grad(value.sum(), projection)
    value, projection = value.detach(), projection.detach()
    assert value.shape == sinogram.shape[:1], (
        f"value: expected shape {tuple(sinogram.shape[:1])}, got {tuple(value.shape)}"
    )
    assert bool((value >= 0).all()), f"value: expected at least 0, got {value.tolist()}"
    least = fidelity.value(sinogram, sinogram).abs().max()
    assert least <= 1e-12 * value.max(), f"value at z = y: expected 0, got {float(least)}"
    _expect_close("gradient", fidelity.gradient(sinogram, projection), expected, 1e-10)
    _check_conjugate(fidelity, sinogram, projection, seed)
    middle = fidelity.value(sinogram, (sinogram + projection) / 2)
    assert bool((middle <= value / 2 + 1e-12 * value).all()), "value: expected a convex function"


def _check_conjugate(fidelity: Fidelity, sinogram: Tensor, projection: Tensor, seed: int) -> None:
    """The conjugate by Fenchel's equality at a gradient, its proximal map by its optimality condition."""
    dual = fidelity.gradient(sinogram, projection)
    inner = (dual * projection).flatten(1).sum(1)
    _expect_close("conjugate", fidelity.conjugate(sinogram, dual), inner - fidelity.value(sinogram, projection), 1e-8)
    for step in (0.01, 1.0, 100.0):
        away = dual + _random(tuple(dual.shape), torch.float64, dual.device, seed + 2) * dual.abs().mean()
        q = fidelity.prox_conjugate(sinogram, away, step)
        at = (away - q) / step  # a subgradient of D* at q: there the gradient of D is q again
        _expect_close(f"prox_conjugate with step {step}", fidelity.gradient(sinogram, at), q, 1e-6)
    leaf = sinogram.clone().requires_grad_()
    (slope,) = torch.autograd.grad(fidelity.gradient(sinogram, leaf).sum(), leaf)
    _expect_close("curvature", fidelity.curvature(sinogram), slope, 1e-8)


def check_metric(
    metric: Callable[[Tensor, Tensor, float], Tensor],
    reference: Callable[[Tensor, Tensor, float], float],  # of one image (height, width)
    *,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """One number per image, equal to an outside implementation, at more than one data range, for any batch."""
    truth = _random((3, 1, 24, 31), torch.float64, "cpu", seed).abs()
    image = truth + 0.1 * _random((3, 1, 24, 31), torch.float64, "cpu", seed + 1)
    for data_range in (1.0, 3.0):
        values = metric(image, truth, data_range)
        assert values.shape == (3,), f"expected one number per image, got shape {tuple(values.shape)}"
        for one, x, t in zip(values.tolist(), image, truth, strict=True):
            expected = reference(x[0], t[0], data_range)
            assert abs(one - expected) <= tolerance * max(1, abs(expected)), f"expected {expected}, got {one}"


def check_method(
    method: Reconstructor,
    geometry: Geometry,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Reconstruction:
    """Shapes, finite numbers, the same answer for the same seed, and no change of what it was given."""
    sinogram = _random((2, 1, *geometry.sinogram_shape), torch.float32, device, seed).abs()
    before = sinogram.clone()
    result, again = method(sinogram, samples=3, seed=1), method(sinogram, samples=3, seed=1)
    assert torch.equal(sinogram, before), "the method changed the sinogram it was given"
    assert tuple(result.image.shape) == (2, 1, *geometry.image_shape), f"image: got shape {tuple(result.image.shape)}"
    assert bool(torch.isfinite(result.image).all()), "image: expected finite numbers"
    assert torch.equal(result.image, again.image), "expected the same image for the same seed"
    assert result.geometry == geometry.to_json(), "expected the result to carry the geometry"
    for name in ("aleatoric", "epistemic"):
        variance = getattr(result, name)
        assert variance is None or bool((variance >= 0).all()), f"{name}: expected variances of at least 0"
    return result


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def _expect_shape(what: str, came: Tensor, like: Tensor) -> None:
    assert came.shape == like.shape, f"{what}: expected shape {tuple(like.shape)}, got {tuple(came.shape)}"


def _expect_close(what: str, came: Tensor, expected: Tensor, tolerance: float) -> None:
    error = float((came.double() - expected.double()).norm())
    scale = float(expected.double().norm())
    assert error <= tolerance * max(scale, 1e-300), f"{what}: relative error {error / max(scale, 1e-300):.2e}"
