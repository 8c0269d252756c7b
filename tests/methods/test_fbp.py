import numpy as np
import pytest
import torch

from bayescade.errors import UserError
from bayescade.methods import fbp
from bayescade.physics.cases import case_geometry
from bayescade.projectors import ray_transform
from bayescade.testing import check_method


def test_conforms() -> None:
    geometry = case_geometry("sparse-8")
    result = check_method(fbp.build(geometry, fbp.Settings()), geometry)
    assert result.aleatoric is None


@pytest.mark.parametrize("shape", [(2, 1, 8, 183), (2, 8, 183), (8, 183)])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16, "torch"])
def test_arrays_and_missing_axes_are_welcome(shape: tuple[int, ...], kind: object) -> None:
    method = fbp.build(case_geometry("sparse-8"), fbp.Settings())
    data = torch.ones(shape) if kind == "torch" else np.ones(shape, kind)
    assert method(data).image.shape == (2 if len(shape) > 2 else 1, 1, 128, 128)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.rand(1, 1, 8, 100), r"expected shape \(batch, 1, 8, 183\), got \(1, 1, 8, 100\)"),
        (torch.rand(3, 2, 1, 8, 183), "expected shape"),
        (torch.rand(0, 1, 8, 183), "expected shape"),
        (torch.tensor(1.0), "expected shape"),
        (torch.full((8, 183), float("nan")), "1464 values that are NaN"),
        (torch.rand(8, 183, dtype=torch.complex64), "real numbers"),
        (torch.rand(8, 183).to_sparse(), "dense real numbers"),
        ("sinogram", "expected a tensor or an array"),
        (None, "expected a tensor or an array"),
        (np.array([{"a": 1}], dtype=object), "expected a tensor or an array"),
    ],
)
def test_what_is_no_sinogram_is_named(data: object, message: str) -> None:
    method = fbp.build(case_geometry("sparse-8"), fbp.Settings())
    with pytest.raises(UserError, match=message):
        method(data)


def test_the_result_says_how_it_was_made() -> None:
    method = fbp.build(case_geometry("sparse-8"), fbp.Settings("hann"))
    result = method(torch.rand(8, 183), seed=5)
    assert result.settings == '{"window": "hann", "ramp": "band-limited"}'
    assert result.seed == 5


def test_the_window_is_used() -> None:
    geometry = case_geometry("sparse-8")
    sinogram = torch.rand(1, 1, 8, 183)
    images = [fbp.build(geometry, fbp.Settings(window))(sinogram).image for window in ("ram-lak", "hann")]
    assert float(images[0].std()) > float(images[1].std())


def test_the_ramp_is_used() -> None:
    geometry = case_geometry("sparse-8")
    sinogram = torch.rand(1, 1, 8, 183)
    image = fbp.build(geometry, fbp.Settings(ramp="shifted"))(sinogram).image
    assert torch.equal(image, ray_transform(geometry, calls=1).fbp(sinogram, ramp="shifted"))
    assert not torch.equal(image, fbp.build(geometry, fbp.Settings())(sinogram).image)


def test_an_unknown_window_is_an_error_when_it_is_set() -> None:
    with pytest.raises(UserError, match="unknown window 'box'"):
        fbp.Settings(window="box")
    with pytest.raises(UserError, match="unknown ramp 'box'"):
        fbp.Settings(ramp="box")
