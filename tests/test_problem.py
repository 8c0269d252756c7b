"""An inverse problem that is not a scan, through the public API: a blur with counted photons."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = '''
import sys

import torch
from torch.nn.functional import conv2d

import bayescade
from bayescade.physics.fidelity import Fidelity


class Blur(bayescade.LinearOperator):
    """A symmetric kernel with zeros around the image is its own transpose."""

    domain_shape = range_shape = (1, 16, 16)
    kernel = torch.tensor([[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]) / 16

    def forward(self, x):
        return conv2d(x.flatten(0, -4), self.kernel, padding=1).reshape(x.shape)

    adjoint = forward


class Counts(Fidelity):
    """Negative log-likelihood of N ~ Poisson(GAIN z), y = N / GAIN, less its least value."""

    GAIN, DARK = 200.0, 0.05

    def value(self, y, z):
        y, z = y + self.DARK, z.clamp_min(0) + self.DARK
        return self.GAIN * (z - y + y * (y / z).log()).flatten(1).sum(1)

    def gradient(self, y, z):
        return self.GAIN * (1 - (y + self.DARK) / (z.clamp_min(0) + self.DARK))

    def curvature(self, y):
        return self.GAIN / (y + self.DARK)


def scans(operator, images, seed):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.zeros(images, 1, 16, 16)
    for image in truth:
        row, column = torch.randint(2, 9, (2,), generator=generator).tolist()
        image[0, row : row + 5, column : column + 5] = 1.0
    counts = torch.poisson(Counts.GAIN * operator(truth), generator=generator)
    return counts / Counts.GAIN, truth


operator = Blur()
problem = bayescade.InverseProblem(operator, fidelity=Counts(), scale=SCALE)
training, validation = scans(operator, 64, 0), scans(operator, 8, 1)
said = bayescade.train(
    "bdgd-plus",
    sys.argv[1],
    problem=problem,
    training=training,
    validation=validation,
    name="blur",
    settings={"block": {"channels": 4}, "greedy.blocks": 2, "fit.epochs": 15, "fit.batch": 8, "greedy.restarts": 0},
)
model = bayescade.load_model(sys.argv[1], problem=problem)
y, truth = scans(operator, 4, 2)
result = model(y, samples=5)
first = operator.initial(y)
assert result.geometry is None
assert result.image.shape == truth.shape
error, error_first = ((image - truth).square().mean() for image in (result.image, first))
assert error < 0.5 * error_first, (float(error), float(error_first))
assert result.epistemic.min() >= 0 and result.epistemic.max() > 0
ratio = float(result.variance.mean() / error)
assert 0.2 < ratio < 5, ratio
ct = [name for name in sys.modules if name.startswith(("bayescade.physics.geometry", "bayescade.physics.fbp",
      "bayescade.physics.fan_fbp", "bayescade.physics.ray_transform", "bayescade.projectors", "bayescade.data"))]
assert not ct, ct
result.save(sys.argv[1] + "/result.h5")
assert bayescade.Reconstruction.load(sys.argv[1] + "/result.h5").geometry is None
print(f"{10 * torch.log10(1 / error):.2f}", said["blocks"])
'''


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_blur_with_counted_photons_is_trained_and_reconstructed(tmp_path: Path) -> None:
    psnr, blocks = run(CODE.replace("SCALE", "1.0"), tmp_path / "run").split()
    assert float(psnr) > 20
    assert blocks == "2"
    assert "blur" in (tmp_path / "run" / "card.md").read_text()
