"""Finite differences at the four corners of a pixel, and their transpose: the gradient in total variation.

With forward differences only, the total variation of an edge depends on its direction. Here every pixel has four gradients, one
per corner: along each axis the difference to the next or to the previous pixel. Total variation uses the mean of the lengths of
the four gradients. It does not change when the image is rotated by 90 degrees or mirrored.
"""

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # differences along the two axes
Corners = tuple[Pair, Pair, Pair, Pair]

CORNERS = 4
# The squared norm of the operator `corner_gradients` is below 4 times 8 for every image size (Chambolle 2004).
CORNERS_NORM_SQUARED = 32.0


def corner_gradients(
    image: Tensor,  # (..., height, width)
) -> Corners:
    """Differences along both axes at each corner, per pixel width; zero across the border of the image."""
    down, right = torch.empty_like(image), torch.empty_like(image)
    torch.sub(image[..., 1:, :], image[..., :-1, :], out=down[..., :-1, :])
    torch.sub(image[..., :, 1:], image[..., :, :-1], out=right[..., :, :-1])
    down[..., -1:, :] = 0
    right[..., :, -1:] = 0
    previous_down, previous_right = torch.empty_like(image), torch.empty_like(image)
    previous_down[..., 1:, :] = down[..., :-1, :]
    previous_right[..., :, 1:] = right[..., :, :-1]
    previous_down[..., :1, :] = 0
    previous_right[..., :, :1] = 0
    return (down, right), (down, previous_right), (previous_down, right), (previous_down, previous_right)


def corner_gradients_adjoint(corners: Corners) -> Tensor:
    """The exact transpose of `corner_gradients`."""
    (down_0, right_0), (down_1, previous_right_1), (previous_down_2, right_2), last = corners
    previous_down_3, previous_right_3 = last
    down, right = down_0 + down_1, right_0 + right_2
    down[..., :-1, :] += previous_down_2[..., 1:, :] + previous_down_3[..., 1:, :]
    right[..., :, :-1] += previous_right_1[..., :, 1:] + previous_right_3[..., :, 1:]
    image = torch.zeros_like(down)
    image[..., 1:, :] += down[..., :-1, :]
    image[..., :-1, :] -= down[..., :-1, :]
    image[..., :, 1:] += right[..., :, :-1]
    image[..., :, :-1] -= right[..., :, :-1]
    return image


def magnitude(pair: Pair) -> Tensor:
    """Length of the gradient at every pixel."""
    down, right = pair
    return torch.sqrt(down * down + right * right)


def total_variation(
    image: Tensor,  # (batch, 1, height, width)
) -> Tensor:
    """Isotropic total variation of each image, (batch,): the sum of lengths over the pixels, then the mean over the corners."""
    lengths = [magnitude(pair).flatten(1).sum(1) for pair in corner_gradients(image)]
    return torch.stack(lengths).mean(0)
