"""Root mean squared error."""

from torch import Tensor

from bayescade.metrics import check_pair


def rmse(
    image: Tensor,  # (batch, 1, height, width)
    truth: Tensor,  # (batch, 1, height, width)
    data_range: float,
) -> Tensor:
    """sqrt(mean (image - truth)^2) / data_range of each image, (batch,), float64."""
    check_pair(image, truth, data_range)
    return (image.double() - truth.double()).square().mean(dim=(1, 2, 3)).sqrt() / data_range
