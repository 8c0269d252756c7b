"""The calibrations in the package are found, and are those that today's code makes."""

import numpy as np
import pytest
import torch

from bayescade.calibration.calibrate import SPLIT
from bayescade.calibration.simulated import simulated_scans
from bayescade.calibration.store import find, key_of
from tests.examples.test_examples import load

SHIPPED = load("shipped_calibrations")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESCADE_CACHE", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "scan"), SHIPPED.SHIPPED, ids=["-".join(pair) for pair in SHIPPED.SHIPPED])
def test_a_shipped_calibration_fits_its_model(model: str, scan: str) -> None:
    examiner, kind = SHIPPED.examined_kind(model, scan, CPU)
    calibration = find(key_of(examiner, kind), least_images=100)
    assert calibration is not None, "make it: python examples/shipped_calibrations.py"
    examiner.errors = calibration.errors
    scans = list(simulated_scans(kind, 2, seed=0, split=SPLIT))
    found = examiner.data_only(torch.cat([scan.sinogram for scan in scans]), kind.noise)[1]
    for symptoms in found:
        for name, value in symptoms.items():
            stored = np.asarray(calibration.unusual.nulls[name].values)
            assert abs(stored - value).min() < 1e-3 * max(1.0, abs(value)), f"{name} is computed in another way now"
