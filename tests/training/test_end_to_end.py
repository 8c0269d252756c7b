"""End-to-end training: it learns, and what is saved after a round is all that is needed to go on."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bayescade.blocks.convolution import channels_last
from bayescade.errors import Failure, UserError
from bayescade.networks.primal_dual import PrimalDual
from bayescade.networks.unet import UNet
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from bayescade.training import losses
from bayescade.training.end_to_end import (
    EndToEndSettings,
    Examples,
    NetworkTraining,
    optimiser_tensors,
    restore,
    train_network,
)
from bayescade.training.optimiser import Adam, Group
from tests.geometries import small_parallel


def examples(images: int = 12) -> Examples:
    operator = ray_transform(small_parallel(8))
    truth = torch.rand((images, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    sinogram = operator(truth)
    return Examples(operator.fbp(sinogram), sinogram, truth)


def network() -> UNet:
    return UNet(4, 8, 2, torch.Generator().manual_seed(0))


class Folder:
    """Holds what a training leaves."""

    def __init__(self) -> None:
        self.saved: list[tuple[dict[str, Tensor], dict[str, Any]]] = []
        self.lines: list[dict[str, Any]] = []

    def save(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        self.saved.append(({key: value.clone() for key, value in tensors.items()}, record))


def train(settings: EndToEndSettings, folder: Folder, seed: int = 0) -> None:
    saved = folder.saved[-1] if folder.saved else None
    job = NetworkTraining(settings, seed, saved, folder.save, folder.lines.append)
    train_network(network(), examples(), examples(2), job)


def test_it_learns_and_tells() -> None:
    folder = Folder()
    train(EndToEndSettings(epochs=30, batch=4, rounds=3, learning_rate=3e-3), folder)
    assert folder.lines[-1]["loss"] < 0.7 * folder.lines[0]["loss"]
    assert [line["epoch"] for line in folder.lines] == list(range(1, 31))
    assert [record["rounds"] for _, record in folder.saved] == [1, 2, 3]
    assert folder.saved[-1][1]["validation_psnr"] == pytest.approx(folder.lines[-1]["validation_psnr"])
    assert all(math.isfinite(line["validation_psnr"]) for line in folder.lines)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_training_that_goes_on_is_the_one_that_was_not_cut_off(rounds: int) -> None:
    settings = EndToEndSettings(epochs=7, batch=4, rounds=3)
    whole, again = Folder(), Folder()
    train(settings, whole)
    again.saved = whole.saved[:rounds]
    train(settings, again)
    assert again.saved[-1][0].keys() == whole.saved[-1][0].keys()
    for name, tensor in whole.saved[-1][0].items():
        assert torch.equal(tensor, again.saved[-1][0][name]), name
    assert again.lines == whole.lines[-len(again.lines) :]


def test_another_seed_is_another_order() -> None:
    settings = EndToEndSettings(epochs=1, batch=4, rounds=1)
    one, other = Folder(), Folder()
    train(settings, one)
    train(settings, other, seed=1)
    assert any(not torch.equal(tensor, other.saved[0][0][name]) for name, tensor in one.saved[0][0].items())


def test_more_rounds_than_epochs_are_fine() -> None:
    folder = Folder()
    train(EndToEndSettings(epochs=2, batch=4, rounds=5), folder)
    assert len(folder.lines) == 2
    assert [record["rounds"] for _, record in folder.saved] == [1, 2]


def test_a_loss_that_is_not_a_number_stops() -> None:
    bad = examples()
    assert isinstance(bad.truth, Tensor)
    bad.truth[0] = math.nan
    lines: list[dict[str, Any]] = []
    with pytest.raises(Failure, match="epoch 1: the loss is nan"):
        job = NetworkTraining(EndToEndSettings(epochs=1, batch=4), 0, report=lines.append)
        train_network(network(), bad, examples(2), job)
    assert lines[-1]["failed"] == "epoch 1: the loss is nan"


def test_the_step_is_adams_with_a_clipped_gradient() -> None:
    """One step on all images, against the same written out."""
    data, ours, theirs = examples(4), network(), network()
    settings = EndToEndSettings(epochs=1, batch=4, rounds=1, clip=1e-3, warm_up=0.0)
    train_network(ours, data, data, NetworkTraining(settings, seed=0))
    optimiser = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    assert isinstance(data.initial, Tensor)
    assert isinstance(data.data, Tensor)
    losses.image_error(theirs(data.initial, data.data), torch.as_tensor(data.truth)).backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1e-3)
    optimiser.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert set(optimiser_tensors(Adam([Group(list(theirs.parameters()))]))) == {
        f"optimiser.{index}.{name}"
        for index in range(len(list(theirs.parameters())))
        for name in ("exp_avg", "exp_avg_sq", "step")
    }


def test_what_is_put_back_is_laid_out_like_the_weights() -> None:
    """Adam is one kernel, which asks for that; files keep no layout."""
    made = network()
    channels_last(made)
    optimiser = Adam([Group(list(made.parameters()))])
    kept = {**made.state_dict()}
    for index, parameter in enumerate(made.parameters()):
        values = torch.rand(parameter.shape)  # contiguous
        kept |= {f"optimiser.{index}.{name}": values.clone() for name in ("exp_avg", "exp_avg_sq")}
        kept[f"optimiser.{index}.step"] = torch.tensor(3.0)
    restore(made, optimiser, kept)
    for index, parameter in enumerate(made.parameters()):
        for name in ("exp_avg", "exp_avg_sq"):
            found = getattr(optimiser.memory[parameter], name)
            assert found.stride() == parameter.stride()
            assert torch.equal(found, kept[f"optimiser.{index}.{name}"])
    assert any(not parameter.is_contiguous() for parameter in made.parameters())


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"clip": -1.0}, {"warm_up": 1.0}, {"precision": "half"}, {"weight_decay": -1.0}],
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="setting"):
        EndToEndSettings(**wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["unet", "lpd"])
def test_a_captured_step_is_the_plain_step(kind: str) -> None:
    """The same training in float32 on the CPU and, as a CUDA graph, on the GPU."""
    trained = []
    for device in ("cpu", "cuda"):
        operator = ray_transform(small_parallel(8), device)
        on_cpu = examples()
        data = Examples(*(torch.as_tensor(store).to(device) for store in (on_cpu.initial, on_cpu.data, on_cpu.truth)))
        generator = torch.Generator().manual_seed(0)
        made = (
            UNet(4, 8, 2, generator)
            if kind == "unet"
            else PrimalDual(InverseProblem(operator, norm=8.0), 2, 5, 6, generator)
        )
        settings = EndToEndSettings(epochs=4, batch=4, rounds=2, precision="float32")
        train_network(made, data, data, NetworkTraining(settings, seed=0))
        trained.append(torch.cat([parameter.detach().flatten().cpu() for parameter in made.parameters()]))
    assert (trained[0] - trained[1]).abs().max() < 2e-3


@pytest.mark.gpu
def test_a_training_is_taken_up_on_a_gpu() -> None:
    on_cpu = examples()
    data = Examples(*(torch.as_tensor(store).cuda() for store in (on_cpu.initial, on_cpu.data, on_cpu.truth)))
    settings = EndToEndSettings(epochs=4, batch=4, rounds=2, precision="float32")
    whole, again = Folder(), Folder()
    train_network(network(), data, data, NetworkTraining(settings, 0, save=whole.save))
    tensors, record = whole.saved[0]
    stored = {key: value.cpu().contiguous() for key, value in tensors.items()}  # as a file has it
    train_network(network(), data, data, NetworkTraining(settings, 0, (stored, record), again.save))
    for key, value in whole.saved[-1][0].items():
        assert torch.allclose(again.saved[-1][0][key], value, atol=1e-4), key
