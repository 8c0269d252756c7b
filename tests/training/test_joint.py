"""Joint training: its gradients, its batches, runs that were stopped, and what it gains."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks import heteroscedastic
from bayescade.blocks.block import Block, State
from bayescade.blocks.runner import PlainRunner
from bayescade.blocks.sampling import MeanWeights
from bayescade.blocks.settings import BlockSettings
from bayescade.errors import Failure, UserError
from bayescade.models import load_model
from bayescade.networks.cascade import Cascade, step
from bayescade.phantoms import ellipses
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.problem import InverseProblem
from bayescade.physics.symmetries import SYMMETRIES
from bayescade.pipeline import any_scans
from bayescade.pipeline.pack import pack_model
from bayescade.pipeline.train import train
from bayescade.projectors import PerImageProjector, ray_transform
from bayescade.projectors.any_scan import PLANES, any_scan_problem
from bayescade.projectors.per_image import Room
from bayescade.storage.manifest import read_manifest
from bayescade.storage.runs import Run
from bayescade.storage.weights import OPTIMISER_PREFIX, Tensors, read_tensors
from bayescade.training import greedy, joint, joint_step, losses
from bayescade.training.fit import FitSettings
from bayescade.training.greedy import GreedySettings, Task, Trained, Training, train_cascade
from bayescade.training.joint import (
    JointSettings,
    Save,
    Saved,
    adam,
    revive_all,
    shuffled,
    train_jointly,
    validation_psnr,
)
from bayescade.training.joint_step import DECAY, Batch, Examples, JointSteps, cascade_loss, examples_of
from bayescade.training.posterior import median_log_std
from bayescade.training.runner import TrainingRunner
from bayescade.training.sets import ProblemSet
from bayescade.training.stage import first_stage

SHAPE = (10, 8)
SCANS: list[Geometry] = [
    ParallelBeam(0.3 + np.arange(5) * math.pi / 5, 15, 0.9, 0.2, image_shape=SHAPE),
    FanBeam(np.arange(7) * 2 * math.pi / 7, 19, 1.2, image_shape=SHAPE, source_origin=30.0, source_detector=45.0),
]
RUNNER = TrainingRunner(fused=False, step_type=torch.float64, pass_type=torch.float64)
BLOCK = BlockSettings(channels=4, memory_channels=2, variance="features")
INPUTS = 9  # planes of the problem, the gradient included


def mixed_set() -> ProblemSet:
    """Images that alternate between a parallel beam and a fan beam."""
    return set_of(PerImageProjector(SCANS, dtype=torch.float64), images=4)


def parallel_beam(index: int) -> ParallelBeam:
    """One of many scans."""
    views = 4 + index % 3
    return ParallelBeam(index + np.arange(views) * math.pi / views, 14 + index % 4, 0.9, 0.2, image_shape=SHAPE)


def fan_beam(index: int) -> FanBeam:
    """One of many scans; some have a displaced detector."""
    views, offset = 5 + index % 3, 3.0 * (index % 2)
    angles = index + np.arange(views) * 2 * math.pi / views
    return FanBeam(angles, 17 + index % 4, 1.2, offset, 1.0, SHAPE, source_origin=30.0, source_detector=45.0)


def scan_set(
    beam: Callable[[int], Geometry], images: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> ProblemSet:
    """Images with one scan each."""
    scans = [beam(index) for index in range(images)]
    room = Room.of([beam(index) for index in range(12)])
    return set_of(PerImageProjector(scans, dtype=dtype, room=room), images, seed)


def set_of(operator: PerImageProjector, images: int, seed: int = 0) -> ProblemSet:
    truth = ellipses.generate(images, SHAPE, seed=seed).to(operator.dtype)
    return any_scan_problem(operator, PLANES), operator(truth), truth


def make(generator: torch.Generator) -> Block:
    block = heteroscedastic.build(BLOCK, generator, INPUTS)
    block.use_levels()
    return block


def new_blocks() -> list[Block]:
    return [make(torch.Generator().manual_seed(number)).double() for number in range(2)]


def loss_of(blocks: list[Block], item: ProblemSet) -> Tensor:
    problem, data, truth = item
    y, runners = data[:], [PlainRunner(block) for block in blocks]
    return cascade_loss(runners, problem, y, problem.initial(y), problem.known(y), truth[:])


def image_loss(blocks: list[Block], item: ProblemSet) -> Tensor:
    """The weighted sum over the blocks of mean log(e) / 2, e the mean squared error of an image."""
    problem, data, truth = item
    total = truth.new_zeros(())
    for count in range(1, len(blocks) + 1):
        image = Cascade(blocks[:count])(data[:], problem).mean
        errors = ((image - truth[:]) ** 2).flatten(1).mean(1)
        total = total + DECAY ** (len(blocks) - count) * errors.log().mean() / 2
    return total


def gradients_of(blocks: list[Block], item: ProblemSet) -> dict[str, Tensor]:
    """The gradient of the loss with respect to every parameter that has one, `block.parameter`."""
    for block in blocks:
        block.zero_grad()
    loss_of(blocks, item).backward()
    named = [(f"{n}.{name}", value) for n, block in enumerate(blocks) for name, value in block.named_parameters()]
    return {name: value.grad.clone() for name, value in named if value.grad is not None}


def slope(value: Any, parameter: Tensor, index: tuple[int, ...], change: float = 1e-7) -> float:
    """The central finite difference of `value()`."""
    sides = []
    with torch.no_grad():
        for sign in (1, -2, 1):  # up, down, and back
            parameter[index] += sign * change
            sides.append(float(value()))
    return (sides[0] - sides[1]) / (2 * change)


def largest(gradient: Tensor) -> tuple[int, ...]:
    """The index of the largest entry."""
    return tuple(int(i) for i in np.unravel_index(int(gradient.abs().argmax()), gradient.shape))


def test_the_gradient_passes_through_all_blocks_and_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lower bound of the errors, `image_error` has the gradient of mean log(e) / 2."""
    monkeypatch.setattr(losses, "LEAST_SHARE", 0.0)
    blocks, item = new_blocks(), mixed_set()
    gradients = gradients_of(blocks, item)
    of_first = {f"0.{name}": value for name, value in blocks[0].named_parameters()}
    names = [name for name in of_first if "variance" not in name and "log_std" not in name]
    assert len(names) == 2 * (6 + 1)
    for name in names:
        gradient, index = gradients[name], largest(gradients[name])
        assert gradient[index] != 0
        computed = slope(lambda: image_loss(blocks, item), of_first[name], index)
        assert float(gradient[index]) == pytest.approx(computed, rel=1e-5, abs=1e-8), name  # abs: rounding


def test_the_nll_trains_the_variance_networks_and_nothing_else() -> None:
    blocks, item = new_blocks(), mixed_set()
    whole = gradients_of(blocks, item)
    for number in range(2):
        parameters = dict(blocks[number].named_parameters(prefix=str(number)))
        of_variance = [name for name in parameters if ".variance." in name and not name.endswith("log_std")]
        assert len(of_variance) == 6
        for name in of_variance:
            index = largest(whole[name])
            computed = slope(lambda: loss_of(blocks, item), parameters[name], index)
            assert float(whole[name][index]) == pytest.approx(computed, rel=1e-5), name
    for block in blocks:
        block.variance = None
    without = gradients_of(blocks, item)
    assert {name for name in whole if "variance" not in name} == without.keys()
    for name, gradient in without.items():
        assert torch.equal(whole[name], gradient), name


def test_all_parameters_but_the_standard_deviations_are_trained() -> None:
    blocks = new_blocks()
    named = {name: value for n, block in enumerate(blocks) for name, value in block.named_parameters(prefix=str(n))}
    left_out = [name for name, value in named.items() if value not in set(adam(blocks, JointSettings()).parameters)]
    assert left_out == [f"{n}.{name}log_std" for n in range(2) for name in ("last.", "variance.last.")]


def plain_set(images: int) -> ProblemSet:
    """Images of one scan."""
    operator = ray_transform(SCANS[0])
    return InverseProblem(operator), torch.zeros(images, *operator.range_shape), torch.zeros(images, 1, *SHAPE)


def order_of(examples: list[Examples], seed: int = 0, epoch: int = 0) -> list[tuple[int, list[int]]]:
    """The batches of an epoch: the number of the set, and the images."""
    numbers = {id(part): number for number, part in enumerate(examples)}
    batches = shuffled(examples, 4, seed, epoch)
    return [(numbers[id(batch.examples)], batch.indices.tolist()) for batch in batches]


def example_sets() -> list[Examples]:
    return examples_of(first_stage([scan_set(fan_beam, 6), plain_set(8), scan_set(parallel_beam, 2)], 4))


def test_an_epoch_has_every_image_once() -> None:
    """In batches of one set each; the sets are in random order."""
    order = order_of(example_sets())
    for number, sizes in ((0, [2, 4]), (1, [4, 4]), (2, [2])):
        batches = [indices for own, indices in order if own == number]
        assert sorted(len(indices) for indices in batches) == sizes
        assert sorted(index for indices in batches for index in indices) == list(range(sum(sizes)))
        assert number == 2 or any(indices != sorted(indices) for indices in batches)
    assert [number for number, _ in order] != sorted(number for number, _ in order)


def test_batches_of_large_images_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "BATCH_PIXELS", 3 * math.prod(SHAPE))
    assert [len(indices) for _, indices in order_of(examples_of(first_stage([plain_set(6)], 4)))] == [3, 3]
    monkeypatch.setattr(joint, "BATCH_PIXELS", 1)
    assert [len(indices) for _, indices in order_of(examples_of(first_stage([plain_set(2)], 4)))] == [1, 1]


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    examples = example_sets()
    first = order_of(examples)
    torch.manual_seed(7)
    assert order_of(example_sets()) == first
    assert order_of(examples, epoch=1) != first
    assert order_of(examples, seed=1) != first


@pytest.mark.parametrize("beam", [parallel_beam, fan_beam])
def test_a_batch_has_the_scans_of_its_images(beam: Callable[[int], Geometry]) -> None:
    """Its loss is that of an operator of these scans; one step serves all batches of equal size, also of other sets."""
    blocks = new_blocks()
    steps = JointSteps(blocks, adam(blocks, JointSettings()), clip=0.0, runner=RUNNER)
    examples = examples_of(first_stage([scan_set(beam, images, torch.float64, images) for images in (7, 9)], 4))
    for number, indices in ((0, [3, 0, 6]), (1, [8, 2, 7]), (0, [5, 1])):
        part = examples[number]
        loss = steps.load(Batch(part, torch.tensor(indices))).run(0.0)
        operator = PerImageProjector([beam(index) for index in indices], dtype=torch.float64)
        views, bins = operator.range_shape[1:]
        y = part.y[indices][..., :views, :bins]
        assert isinstance(part.problem.norm, Tensor)
        problem = dataclasses.replace(any_scan_problem(operator, PLANES), norm=part.problem.norm[indices])
        expected = loss_of(blocks, (problem, y, part.truth[indices]))
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=0)
    assert len(steps.steps) == 2


@pytest.mark.parametrize("beam", [parallel_beam, fan_beam])
def test_a_batch_is_moved_with_its_scans(beam: Callable[[int], Geometry]) -> None:
    """Its loss is that of the moved images with the scans that give their data."""
    planes = [name for name in PLANES if name != "coarse"]  # squares of pixels that do not divide the image
    blocks = [heteroscedastic.build(BLOCK, torch.Generator().manual_seed(k), INPUTS - 2).double() for k in range(2)]
    for block in blocks:
        block.use_levels()
    scans = [dataclasses.replace(beam(index), image_shape=(8, 8)) for index in range(5)]
    operator = PerImageProjector(scans, dtype=torch.float64, room=Room.of(scans))
    truth = ellipses.generate(5, (8, 8), seed=0).double()
    problem = any_scan_problem(operator, planes, tv_iterations=3)
    y = operator(truth)
    y = y + 0.1 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).double() * (y > 0)
    (part,) = examples_of(first_stage([(problem, y, truth)], 4))
    steps = JointSteps(blocks, adam(blocks, JointSettings()), clip=0.0, runner=RUNNER)
    indices, losses = [4, 0, 3], []
    for move in range(problem.moves):
        symmetry = SYMMETRIES[move]
        moved = PerImageProjector([symmetry.geometry(scans[index]) for index in indices], dtype=torch.float64)
        data = torch.zeros(len(indices), *moved.range_shape).double()
        for own, index in zip(data, indices, strict=True):
            views, bins = scans[index].sinogram_shape
            own[:, :views, :bins] = symmetry.data(y[index][:, :views, :bins])
        assert isinstance(part.problem.norm, Tensor)
        expected_problem = any_scan_problem(moved, planes, tv_iterations=3, norm=part.problem.norm[indices])
        losses.append(loss_of(blocks, (expected_problem, data, symmetry.image(truth[indices]))).item())
        loss = steps.load(Batch(part, torch.tensor(indices), move)).run(0.0)
        assert float(loss) == pytest.approx(losses[-1], rel=1e-6)
    assert len(set(losses)) == len(SYMMETRIES) == 8
    assert len(steps.steps) == 1


def greedy_training() -> Training:
    fitting = FitSettings(epochs=3, batch=8, learning_rate=3e-3)
    return Training(make, GreedySettings(blocks=2, restarts=0), fitting, seed=0)


def test_joint_training_gains_on_the_validation_images() -> None:
    training, settings = greedy_training(), JointSettings(epochs=6, batch=4, learning_rate=3e-3, rounds=3)
    sets = [scan_set(beam, 12) for beam in (parallel_beam, fan_beam)]
    stages = first_stage(sets, 8, 2), first_stage([scan_set(fan_beam, 8, seed=1)], 8, 2)
    blocks = train_cascade(training, *stages)
    before = validation_psnr(training, blocks, stages[1])
    log_stds = [median_log_std(block) for block in blocks]
    saves: list[tuple[Any, ...]] = []
    save: Save = lambda *values: saves.append(values)  # noqa: E731
    train_jointly(blocks, stages, settings, training, Saved(), save)
    after = validation_psnr(training, blocks, stages[1])
    assert after > before + 0.3
    assert [(saved.rounds, records is None) for _, records, saved in saves] == [
        (1, True),
        (2, True),
        (3, True),
        (3, False),
    ]
    records = saves[-1][1]
    assert records[-1]["validation_psnr"] == after
    assert sum(record["gain"] for record in records) == pytest.approx(after - stages[1].psnr())
    for block, record, log_std in zip(blocks, records, log_stds, strict=True):
        assert record["log_std"]["trained"] == log_std  # the standard deviations change in the refit only
        assert record["log_std"]["final"] == median_log_std(block) != log_std


def test_gradients_that_greedy_training_left_do_not_count() -> None:
    """The gradients are clipped: one of a standard deviation, which is not trained, would shrink the others."""
    training, settings = greedy_training(), JointSettings(epochs=2, batch=4, clip=0.01)
    sets = [scan_set(fan_beam, 4)]
    stages = first_stage(sets, 4, 2), first_stage(sets, 4, 2)
    cascades = [[block.float() for block in new_blocks()] for _ in range(2)]
    for layer in cascades[1][0].layers:
        assert isinstance(layer, MeanFieldConv)
        layer.log_std.grad = torch.full_like(layer.log_std, 1e3)
    for blocks in cascades:
        train_jointly(blocks, stages, settings, training, Saved(), lambda *_: None)
    for one, two in zip(*(Cascade(blocks).parameters() for blocks in cascades), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 0}, "setting rounds: expected a whole number from 1"),
        ({"epochs": -1}, "setting epochs: expected a whole number"),
        ({"epochs": 3, "batch": 0}, "setting batch: expected a whole number from 1"),
        ({"epochs": 3, "learning_rate": 0.0}, "setting learning_rate: expected a positive number"),
    ],
)
def test_settings_that_cannot_be_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        JointSettings(**values)


SETTINGS = [
    "data.images=12",
    "data.validation_images=4",
    "greedy.blocks=2",
    "greedy.restarts=0",
    "fit.epochs=1",
    "fit.batch=4",
    "block.scales=1",
    "block.channels=4",
    "block.memory_channels=2",
    "scans.geometries.most_views=12",
    "joint.epochs=2",
    "joint.rounds=2",
    "joint.batch=3",
    "joint.clip=0.1",
]


@pytest.fixture(autouse=True, scope="module")
def _small_images() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(any_scans, "SIZES", {12: 0.5, 14: 0.5})
        yield


def trained(folder: Path, *settings: str) -> Path:
    train("bdgd-plus", str(folder), preset="any", settings=[*SETTINGS, *settings], device="cpu")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds that was not stopped."""
    return trained(tmp_path_factory.mktemp("joint") / "run")


def stop_at(save: int, patch: pytest.MonkeyPatch) -> None:
    """Interrupts a training before it saves its blocks for this time, counted from 1."""
    original, calls = Run.save_together, []

    def save_together(self: Run, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == save:
            raise KeyboardInterrupt
        original(self, *arguments)

    patch.setattr(Run, "save_together", save_together)


def stopped(folder: Path, save: int, *settings: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(save, patch)
        with pytest.raises(KeyboardInterrupt):
            trained(folder, *settings)
    return folder


SEVERAL_SCALES = ("block.scales=3", "fit.epochs=0")


@pytest.fixture(scope="module")
def several_scales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds whose blocks compute on three image sizes."""
    return trained(tmp_path_factory.mktemp("scales") / "run", *SEVERAL_SCALES)


def weights_in(folder: Path) -> tuple[str, Tensors]:
    """The only file of weights of a run: its name and its tensors."""
    (path,) = folder.glob("*.safetensors")
    (digest,) = {block.sha256 for block in read_manifest(folder).blocks}
    return path.name, read_tensors(path, digest)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_stopped_training_continues_to_the_same_weights(whole: Path, tmp_path: Path, rounds: int) -> None:
    """Stopped in the second round, or in the refit after it."""
    folder = stopped(tmp_path / "run", rounds + 1)
    manifest = read_manifest(folder)
    assert manifest.joint is not None
    assert (manifest.joint.rounds, manifest.joint.done) == (rounds, False)
    name, tensors = weights_in(folder)
    assert name == f"joint-{rounds:02d}.safetensors"
    assert {f"{OPTIMISER_PREFIX}0.{state}" for state in ("exp_avg", "exp_avg_sq", "step")} <= tensors.keys()
    trained(folder)
    (name, tensors), (expected_name, expected) = weights_in(folder), weights_in(whole)
    assert name == expected_name == "joint-02-done.safetensors"
    assert tensors.keys() == expected.keys()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, expected[key]), key
    assert (folder / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    for one, two in zip(read_manifest(folder).blocks, read_manifest(whole).blocks, strict=True):
        assert dataclasses.replace(one, seconds=0) == dataclasses.replace(two, seconds=0)


def test_blocks_of_several_scales_continue_to_the_same_weights_and_are_used(
    several_scales: Path, tmp_path: Path
) -> None:
    folder = trained(stopped(tmp_path / "run", 3, *SEVERAL_SCALES), *SEVERAL_SCALES)
    (_, tensors), (_, expected) = weights_in(folder), weights_in(several_scales)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in tensors.items())
    geometry = parallel_beam(0)
    sinogram = ray_transform(geometry)(ellipses.generate(1, geometry.image_shape, seed=0))
    packed = tmp_path / "packed"
    pack_model(str(folder), str(packed), half=True, device="cpu")
    results = [load_model(str(path), device="cpu")(sinogram, geometry=geometry, samples=3) for path in (folder, packed)]
    assert all(float(result.std.min()) > 0 for result in results)
    assert torch.allclose(results[0].image, results[1].image, atol=0.02 * float(results[0].image.max()))


def test_a_finished_run_has_no_optimiser_and_says_what_it_did(whole: Path) -> None:
    _, tensors = weights_in(whole)
    assert {key.split(".")[0] for key in tensors} == {"01", "02"}
    manifest = read_manifest(whole)
    assert manifest.joint is not None
    assert (manifest.joint.rounds, manifest.joint.done) == (2, True)
    assert manifest.training_seconds == sum(block.seconds for block in manifest.blocks) + manifest.joint.seconds
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [(line["block"], line["epoch"]) for line in lines] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert manifest.blocks[-1].validation_psnr == pytest.approx(lines[-1]["validation_psnr"], abs=1e-4)
    before = (whole / "manifest.json").read_bytes()
    trained(whole)
    assert (whole / "manifest.json").read_bytes() == before


def test_without_epochs_there_is_no_joint_training(whole: Path, tmp_path: Path) -> None:
    """With mean weights the blocks are those from which joint training starts, and worse than those that it gives."""
    folder = trained(tmp_path / "run", "joint.epochs=0", "greedy.sampling=mean", "greedy.resample=0")
    manifest = read_manifest(folder)
    assert manifest.joint is None
    assert "joint" not in json.loads((folder / "manifest.json").read_text())
    assert [block.file for block in manifest.blocks] == ["block-01.safetensors", "block-02.safetensors"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert lines == (whole / "metrics.jsonl").read_text().splitlines()[:2]
    assert manifest.blocks[-1].validation_psnr < read_manifest(whole).blocks[-1].validation_psnr


def test_without_greedy_training_the_blocks_start_as_the_identity(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 1, "fit.epochs=0")
    starts = [block.validation_psnr for block in read_manifest(folder).blocks]
    assert starts[0] == starts[1]
    assert trained(folder, "fit.epochs=0")
    manifest = read_manifest(folder)
    assert manifest.joint is not None
    assert manifest.blocks[-1].validation_psnr != starts[0]
    with pytest.raises(UserError, match=r"fit\.epochs: expected at least 1, or joint training"):
        trained(tmp_path / "other", "fit.epochs=0", "joint.epochs=0")


def test_dead_features_live_again_and_the_images_stay() -> None:
    stages = [first_stage([scan_set(parallel_beam, 8)], 4, BLOCK.memory_channels) for _ in range(2)]
    training = greedy_training()
    blocks = [block.float() for block in new_blocks()]
    with torch.no_grad():
        for block in blocks:
            block.trunk.common.convolutions()[-1].bias[:3] = -1e3  # the first two are the memory
    before = validation_psnr(training, blocks, stages[0])
    revive_all(blocks, stages[0], training, 0)
    assert validation_psnr(training, blocks, stages[0]) == pytest.approx(before, abs=1e-4)
    state = State.unstacked(stages[0].groups[0].state[:])
    for block in blocks:
        (measured,) = stages[0].groups[0].measured
        inputs = measured.problem.inputs(state.image, measured.data[:])
        features = PlainRunner(block).features(state, inputs)
        assert float((features.common > 0).float().mean((0, 2, 3)).min()) > 0
        state = step(PlainRunner(block), state, features, MeanWeights())


@pytest.mark.parametrize("setting", ["joint.rounds=0", "joint.epochs=-1"])
def test_bad_settings_are_refused_before_any_work(tmp_path: Path, setting: str) -> None:
    with pytest.raises(UserError, match=f"setting {setting.split('=')[0]}: expected a whole number"):
        trained(tmp_path / "run", setting)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_a_number_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_step, "cascade_loss", lambda *_: torch.tensor(math.nan, requires_grad=True))
    with pytest.raises(Failure, match="epoch 1: the loss or its gradient is not finite in"):
        trained(tmp_path / "run")


def test_a_cascade_that_ended_early_gets_no_further_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its joint training was stopped."""
    original, tried = greedy.train_block, []

    def train_block(training: Training, task: Task, advance: Any) -> Trained:
        tried.append(task.index)
        if task.index == 0:
            return original(training, task, advance)
        return Trained(None, {"block": 2, "tries": 1, "seconds": 0.0, "warnings": ["nothing gained"]})

    monkeypatch.setattr(greedy, "train_block", train_block)
    trained(stopped(tmp_path / "run", 2))
    assert tried == [0, 1]
    assert len(read_manifest(tmp_path / "run").blocks) == 1
