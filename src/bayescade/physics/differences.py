"""Forward differences of images and their transpose: the gradient in total variation."""

import torch
from torch import Tensor

# ||gradient||^2 is below this for every image size (Chambolle 2004).
GRADIENT_NORM_SQUARED = 8.0


def gradient(
    image: Tensor,  # (..., height, width)
) -> tuple[Tensor, Tensor]:
    """Differences to the next pixel along both axes, in units of one pixel; zero past the border."""
    down, right = torch.empty_like(image), torch.empty_like(image)
    torch.sub(image[..., 1:, :], image[..., :-1, :], out=down[..., :-1, :])
    torch.sub(image[..., :, 1:], image[..., :, :-1], out=right[..., :, :-1])
    down[..., -1:, :] = 0
    right[..., :, -1:] = 0
    return down, right


def gradient_adjoint(
    down: Tensor,  # (..., height, width); its last row is not used
    right: Tensor,  # (..., height, width); its last column is not used
) -> Tensor:
    """The exact transpose of `gradient` (minus the divergence)."""
    image = torch.zeros_like(down)
    image[..., 1:, :] += down[..., :-1, :]
    image[..., :-1, :] -= down[..., :-1, :]
    image[..., :, 1:] += right[..., :, :-1]
    image[..., :, :-1] -= right[..., :, :-1]
    return image


def magnitude(down: Tensor, right: Tensor) -> Tensor:
    """Length of the vector at every pixel."""
    return torch.sqrt(down * down + right * right)


def total_variation(
    image: Tensor,  # (batch, 1, height, width)
) -> Tensor:
    """Isotropic total variation of each image, (batch,)."""
    return magnitude(*gradient(image)).flatten(1).sum(1)
