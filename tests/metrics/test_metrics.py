import pytest
import skimage.metrics
import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.metrics.rmse import rmse
from bayescade.metrics.ssim import ssim
from bayescade.testing import check_metric


def skimage_psnr(image: Tensor, truth: Tensor, data_range: float) -> float:
    return float(skimage.metrics.peak_signal_noise_ratio(truth.numpy(), image.numpy(), data_range=data_range))


def skimage_ssim(image: Tensor, truth: Tensor, data_range: float) -> float:
    return float(
        skimage.metrics.structural_similarity(
            truth.numpy(),
            image.numpy(),
            data_range=data_range,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
    )


def skimage_rmse(image: Tensor, truth: Tensor, data_range: float) -> float:
    return float(skimage.metrics.mean_squared_error(truth.numpy(), image.numpy()) ** 0.5 / data_range)


@pytest.mark.parametrize(
    ("metric", "reference"),
    [(psnr, skimage_psnr), (ssim, skimage_ssim), (rmse, skimage_rmse)],
    ids=["psnr", "ssim", "rmse"],
)
def test_equal_to_scikit_image(metric, reference) -> None:
    check_metric(metric, reference)


def test_known_values() -> None:
    truth = torch.zeros(1, 1, 16, 16)
    image = truth + 0.1
    assert float(rmse(image, truth, 1.0)) == pytest.approx(0.1, rel=1e-6)
    assert float(psnr(image, truth, 1.0)) == pytest.approx(20, rel=1e-6)
    assert float(psnr(truth, truth, 1.0)) == float("inf")
    assert float(ssim(truth, truth, 1.0)) == pytest.approx(1)


@pytest.mark.parametrize("metric", [psnr, ssim, rmse])
def test_bad_input_is_named(metric) -> None:
    with pytest.raises(UserError, match="the same shape"):
        metric(torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 16, 15), 1.0)
    with pytest.raises(UserError, match="data_range"):
        metric(torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 16, 16), 0.0)


def test_ssim_needs_room_for_its_window() -> None:
    with pytest.raises(UserError, match="at least 11 x 11"):
        ssim(torch.zeros(1, 1, 10, 16), torch.zeros(1, 1, 10, 16), 1.0)
