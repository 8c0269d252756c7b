"""Checks of linear operators and data fidelities."""

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from bayescade.physics.fidelity import Fidelity
from bayescade.physics.linalg import adjoint_error
from bayescade.physics.operator import LinearOperator
from bayescade.testing._compare import expect_close, expect_shape, random_numbers

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
    """Checks shapes, linearity, batches, the adjoint and the gradients of a linear operator."""
    x = random_numbers((3, *operator.domain_shape), dtype, device, seed)
    y = random_numbers((3, *operator.range_shape), dtype, device, seed + 1)
    forward, adjoint = operator.forward(x), operator.adjoint(y)
    expect_shape("forward", forward, y)
    expect_shape("adjoint", adjoint, x)

    for name, apply, v in (("forward", operator.forward, x), ("adjoint", operator.adjoint, y)):
        together = apply(v)
        one_by_one = torch.cat([apply(one) for one in v.tensor_split(len(v))])
        expect_close(f"{name} of a batch and of its images", together, one_by_one, LINEAR_TOLERANCE[dtype])
        expect_close(
            f"{name}(2 a - b)", apply(2 * v[:1] - v[1:2]), 2 * together[:1] - together[1:2], LINEAR_TOLERANCE[dtype]
        )
        expect_shape(f"{name} of samples", apply(v[None].expand(2, *v.shape)), together.expand(2, *together.shape))

    error = adjoint_error(operator, x, y)
    assert error < ADJOINT_TOLERANCE[dtype], (
        f"adjoint: relative mismatch {error:.2e}, expected less than {ADJOINT_TOLERANCE[dtype]:.0e}"
    )
    _check_backward(operator, x, y, dtype)
    if gradients:
        for apply, v in ((operator.forward, x[:1]), (operator.adjoint, y[:1])):
            leaf = v.clone().requires_grad_()
            assert gradcheck(apply, (leaf,)), "first derivative is wrong"
            assert gradgradcheck(lambda u, apply=apply: apply(u) ** 2, (leaf,)), "second derivative is wrong"


def _check_backward(operator: LinearOperator, x: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    """Checks that d<y, A x>/dx = A'y and d<x, A'y>/dy = A x."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(operator.forward(leaf), leaf, y)
    expect_close("gradient of the forward", gradient, operator.adjoint(y), LINEAR_TOLERANCE[dtype])
    leaf = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(operator.adjoint(leaf), leaf, x)
    expect_close("gradient of the adjoint", gradient, operator.forward(x), LINEAR_TOLERANCE[dtype])


def check_fidelity(
    fidelity: Fidelity,
    sinogram: Tensor,  # (batch, ...), float64
    *,
    seed: int = 0,
) -> None:
    """Checks that the value is one number per image, at least 0, zero at z = y and convex along a line; that gradient and
    curvature are those of autograd; and, if there is a conjugate, the conjugate and its proximal map."""
    sinogram = sinogram.double()
    projection = (
        sinogram + 0.3 * random_numbers(tuple(sinogram.shape), torch.float64, sinogram.device, seed)
    ).requires_grad_()
    value = fidelity.value(sinogram, projection)
    (expected_gradient,) = torch.autograd.grad(value.sum(), projection)
    value, projection = value.detach(), projection.detach()
    assert value.shape == sinogram.shape[:1], (
        f"value: expected shape {tuple(sinogram.shape[:1])}, got {tuple(value.shape)}"
    )
    assert bool((value >= 0).all()), f"value: expected at least 0, got {value.tolist()}"
    at_data = fidelity.value(sinogram, sinogram).abs().max()
    assert at_data <= 1e-12 * value.max(), f"value at z = y: expected 0, got {float(at_data)}"
    expect_close("gradient", fidelity.gradient(sinogram, projection), expected_gradient, 1e-10)
    leaf = sinogram.clone().requires_grad_()
    (expected_curvature,) = torch.autograd.grad(fidelity.gradient(sinogram, leaf).sum(), leaf)
    expect_close("curvature", fidelity.curvature(sinogram), expected_curvature, 1e-8)
    if type(fidelity).conjugate is not Fidelity.conjugate:  # optional: only total variation needs it
        _check_conjugate(fidelity, sinogram, projection, seed)
    middle = fidelity.value(sinogram, (sinogram + projection) / 2)
    assert bool((middle <= value / 2 + 1e-12 * value).all()), "value: expected a convex function"


def _check_conjugate(fidelity: Fidelity, sinogram: Tensor, projection: Tensor, seed: int) -> None:
    """Checks the conjugate D* by Fenchel's equality at a gradient of D, and its proximal map by the optimality condition."""
    dual = fidelity.gradient(sinogram, projection)
    inner = (dual * projection).flatten(1).sum(1)
    expect_close("conjugate", fidelity.conjugate(sinogram, dual), inner - fidelity.value(sinogram, projection), 1e-8)
    for step in (0.01, 1.0, 100.0):
        p = dual + random_numbers(tuple(dual.shape), torch.float64, dual.device, seed + 2) * dual.abs().mean()
        q = fidelity.prox_conjugate(sinogram, p, step)
        z = (p - q) / step  # a subgradient of D* at q, which means that the gradient of D at z is q
        expect_close(f"prox_conjugate with step {step}", fidelity.gradient(sinogram, z), q, 1e-6)
