import pytest
import torch

from bayescade.errors import UserError
from bayescade.methods import fbp
from bayescade.physics.cases import case_geometry
from bayescade.testing import check_method


def test_conforms() -> None:
    geometry = case_geometry("sparse-8")
    result = check_method(fbp.build(geometry, fbp.Settings()), geometry)
    assert result.aleatoric is None


def test_the_window_is_used() -> None:
    geometry = case_geometry("sparse-8")
    sinogram = torch.rand(1, 1, 8, 183)
    images = [fbp.build(geometry, fbp.Settings(window))(sinogram).image for window in ("ram-lak", "hann")]
    assert float(images[0].std()) > float(images[1].std())


def test_an_unknown_window_is_an_error_when_it_is_set() -> None:
    with pytest.raises(UserError, match="unknown window 'box'"):
        fbp.Settings(window="box")
