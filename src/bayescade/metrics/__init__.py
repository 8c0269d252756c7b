"""Metrics: each file has one function, with the name of the file: `(image, truth, data_range) -> one number per image`."""

from torch import Tensor

from bayescade.errors import UserError


def check_pair(
    image: Tensor,  # (batch, 1, height, width)
    truth: Tensor,  # (batch, 1, height, width)
    data_range: float,
) -> None:
    """Raises an error unless image and truth can be compared and the data range is positive."""
    if image.shape != truth.shape or image.ndim != 4:
        raise UserError(
            f"expected image and truth of the same shape (batch, 1, height, width), got {tuple(image.shape)} "
            f"and {tuple(truth.shape)}"
        )
    if not data_range > 0:
        raise UserError(f"data_range: expected a positive number (1 for images in [0, 1]), got {data_range}")
