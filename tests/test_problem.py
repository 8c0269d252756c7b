"""An inverse problem that is not a scan, through the public API: a blur with counted photons."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayescade import InverseProblem, LinearOperator, load_model, train
from bayescade.errors import UserError
from bayescade.storage.packing import pack
from bayescade.storage.weights import read_blocks

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
    settings={"block": {"channels": 4}, "greedy.blocks": 2, "fit.epochs": 25, "fit.batch": 8, "greedy.restarts": 0},
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
      "bayescade.physics.redundancy", "bayescade.physics.ray_transform", "bayescade.projectors", "bayescade.data"))]
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


def scan_of(operator: "Half", images: int) -> tuple[torch.Tensor, torch.Tensor]:
    truth = torch.rand((images, 1, 6, 6), generator=torch.Generator().manual_seed(images))
    return operator.forward(truth) + 0.05, truth


class Half(LinearOperator):
    """A x = x / 2, with an adjoint that may be wrong."""

    domain_shape = range_shape = (1, 6, 6)

    def __init__(self, wrong: float = 0.0):
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def adjoint(self, y: torch.Tensor) -> torch.Tensor:
        return y / 2 + self.wrong * y.roll(1, -1)


TINY = {"greedy.blocks": 1, "fit.epochs": 1, "fit.batch": 2, "block.channels": 2, "greedy.restarts": 0}


def trained(folder: Path, problem: InverseProblem, **changes: object) -> dict[str, object]:
    sets = {"training": scan_of(Half(), 4), "validation": scan_of(Half(), 2), "settings": TINY}
    return train("bdgd-plus", str(folder), problem=problem, **{**sets, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (Half(), {}, "problem: expected an InverseProblem, got Half"),
        (InverseProblem(Half(wrong=0.2)), {}, "expected the adjoint to be the transpose of forward"),
        (InverseProblem(Half()), {"settings": {"data.images": 3}}, "data.images=3: the data are arguments"),
        (InverseProblem(Half(), scale=1000.0), {}, r"use InverseProblem\(..., scale="),
        (InverseProblem(Half()), {"training": (torch.ones(2, 6, 6), -torch.ones(2, 6, 6))}, "values of at least 0"),
        (InverseProblem(Half()), {"training": (torch.ones(2, 6, 6), torch.ones(3, 6, 6))}, "same number as data"),
        (InverseProblem(Half()), {"training": (torch.ones(2, 5, 6), torch.ones(2, 6, 6))}, "data: expected shape"),
    ],
)
def test_what_cannot_be_trained_is_named(
    problem: InverseProblem, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        trained(tmp_path / "run", problem, **changes)
    assert not (tmp_path / "run").exists()


def test_a_model_is_for_its_problem_only(tmp_path: Path) -> None:
    problem = InverseProblem(Half(), initial_image=torch.clone)
    trained(tmp_path / "run", problem)
    assert load_model(str(tmp_path / "run"), problem=problem)(torch.rand(3, 6, 6), samples=2).image.shape == (
        3,
        1,
        6,
        6,
    )
    with pytest.raises(UserError, match=r"trained for a problem with scale 1\.0, this problem has 2\.0"):
        load_model(str(tmp_path / "run"), problem=InverseProblem(Half(), initial_image=torch.clone, scale=2.0))
    with pytest.raises(UserError, match="which is not a scan; from Python"):
        load_model(str(tmp_path / "run"))
    with pytest.raises(UserError, match="is for the scan sparse-32: expected a geometry or nothing, got a problem"):
        load_model("bdgd-plus/sparse-32", problem=problem)
    with pytest.raises(UserError, match="holds another run: problem"):
        trained(tmp_path / "run", InverseProblem(Half(), initial_image=torch.clone, scale=2.0))
    with pytest.raises(UserError, match="data: expected shape"):
        load_model(str(tmp_path / "run"), problem=problem)(torch.rand(3, 5, 6))


def test_scales_of_planes_are_packed_in_single_precision(tmp_path: Path) -> None:
    """A plane of small values has a scale that half precision cannot hold."""
    problem = InverseProblem(Half(), initial_image=torch.clone, planes=(lambda x, y: 1e-9 * x,))
    trained(tmp_path / "run", problem)
    manifest = pack(tmp_path / "run", tmp_path / "model", half=True)
    (block,) = read_blocks(tmp_path / "model", manifest)
    assert block["input_scale"].dtype == torch.float32
    assert bool(torch.isfinite(block["input_scale"]).all())
    result = load_model(str(tmp_path / "model"), problem=problem)(torch.rand(2, 6, 6), samples=2)
    assert bool(torch.isfinite(result.image).all())
