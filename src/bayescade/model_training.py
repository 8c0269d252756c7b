"""Trains a model and saves it to a run folder, for any inverse problem with given data and truths."""

import contextlib
import dataclasses
import hashlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bayescade import __version__, methods, plugins
from bayescade.config import load_settings, settings_texts
from bayescade.errors import Failure, UserError
from bayescade.physics.linalg import adjoint_error
from bayescade.physics.problem import InverseProblem
from bayescade.results import as_data
from bayescade.seeds import check_seed
from bayescade.storage.card import write_card
from bayescade.storage.identity import Identity
from bayescade.storage.lock import locked
from bayescade.storage.manifest import Manifest, warnings_of
from bayescade.storage.runs import Run
from bayescade.training.distributed import ALONE, ProcessGroup
from bayescade.training.sets import Pair, TrainingData
from bayescade.training.tensorboard import tracker

ADJOINT_ERROR = 1e-3  # an adjoint with a larger relative mismatch is wrong
LEAST_VALUE, MOST_VALUE = 0.02, 50.0  # limits of (largest value of the truths) / (scale of the problem)


@dataclasses.dataclass(frozen=True)
class TrainingRequest:
    """What to train, and the folder to save it to."""

    out: str  # the run folder
    method: ModuleType
    settings: Any  # settings of the method
    identity: Identity
    preset: str
    noise: str = ""  # the noise of the data, in words
    tensorboard: bool = False


def train(
    method: str,
    out: str,
    *,
    problem: InverseProblem,
    training: tuple[Any, Any],  # data (images, *range_shape) and truths (images, 1, height, width)
    validation: tuple[Any, Any],
    name: str = "problem",  # name of the problem, for the model's card
    settings: Mapping[str, Any] | Sequence[str] = (),  # they replace settings of the recommended preset
    seed: int = 0,
) -> dict[str, Any]:
    """Trains a method for an inverse problem and saves it to the run folder `out`, or resumes the run in `out`.

    Returns a summary. `load_model(out, problem=problem)` loads the model. For scans use the command `bayescade train`,
    which simulates the data.
    """
    check_seed(seed)
    chosen_method = trainable_method(method)
    check_trainable(problem)
    texts = settings_texts(settings)
    data_settings = [text for text in texts if text.startswith("data.")]
    if data_settings:
        raise UserError(f"setting {data_settings[0]}: the data are arguments of this function; remove this setting")
    sets = TrainingData.of(problem, checked_pair(problem, training), checked_pair(problem, validation))
    counts = {"images": len(sets.training[0]), "validation_images": len(sets.validation[0])}
    base = chosen_method.preset("recommended")
    base = dataclasses.replace(base, data=dataclasses.replace(base.data, **counts))
    chosen_settings = load_settings(chosen_method.Settings, overrides=texts, base=base)
    images = {"name": name, "sha256": content_hash([*sets.training, *sets.validation])}
    stored_settings = {**dataclasses.asdict(chosen_settings), "noise": None, "images": images}
    identity = Identity(method, name, None, stored_settings, seed, problem.describe())
    request = TrainingRequest(out, chosen_method, chosen_settings, identity, "recommended")
    return summary(train_into(request, lambda: sets, problem.device))


def trainable_method(name: str) -> ModuleType:
    """The method of that name; raises unless the method can be trained."""
    if name in plugins.names(methods):
        method = plugins.load(methods, name)
        if not method.ANY_GEOMETRY:
            return method
    our_methods = [known for known in plugins.our_names(methods) if not plugins.load(methods, known).ANY_GEOMETRY]
    raise UserError(plugins.unknown("method to train", name, our_methods))


def check_trainable(problem: InverseProblem) -> None:
    """Raises unless `problem` is an InverseProblem in float32 whose adjoint is the transpose of the operator."""
    if not isinstance(problem, InverseProblem):
        raise UserError(f"problem: expected an InverseProblem, got {type(problem).__name__}")
    operator = problem.operator
    if operator.dtype != torch.float32:
        raise UserError(f"operator: expected float32 for a training, got {operator.dtype}")
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn((1, *shape), generator=generator).to(operator.device)
        for shape in (operator.domain_shape, operator.range_shape)
    )
    error = adjoint_error(operator, x, y)
    if not error < ADJOINT_ERROR:
        raise UserError(
            f"operator: expected the adjoint to be the transpose of forward, got a relative mismatch of {error:.1e}; "
            "see bayescade.testing.check_operator"
        )


def checked_pair(problem: InverseProblem, pair: tuple[Any, Any]) -> Pair:
    """Data and truths on the device of the problem; raises if their shapes or values do not fit the problem."""
    data = as_data(pair[0], problem.operator.range_shape, "data")
    truth = as_data(pair[1], problem.operator.domain_shape, "truth")
    if len(data) != len(truth):
        raise UserError(f"truth: expected the same number as data, got {len(truth)} truths and {len(data)} data")
    least, most = float(truth.min()), float(truth.max())
    if least < 0:
        raise UserError(f"truth: expected values of at least 0, because methods give no negative values, got {least:g}")
    if not LEAST_VALUE <= most / problem.scale <= MOST_VALUE:
        raise UserError(
            f"truth: expected values up to about {problem.scale:g}, the scale of the problem, got {most:g}; "
            f"use InverseProblem(..., scale={most:.2g})"
        )
    return data.to(problem.device), truth.to(problem.device)


def content_hash(stores: Sequence[Any]) -> str:
    """The hash of the training and validation data: a run is resumed only with the same data."""
    digest = hashlib.sha256()
    for store in stores:
        assert isinstance(store, Tensor)
        digest.update(store.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def train_into(
    request: TrainingRequest,
    make_data: Callable[[], TrainingData],  # called only if the run is not finished
    device: torch.device,
    processes: ProcessGroup = ALONE,
) -> Run:
    """Trains and saves to the run folder, or resumes the run in it; a finished run is returned unchanged.

    Only one process, or one group of processes, may use the folder at a time.
    """
    with contextlib.ExitStack() as stack:
        if processes.rank == 0:
            stack.enter_context(locked(request.out))
            run = Run.open(
                request.out, request.identity, preset=request.preset, device=device_name(device), versions=versions()
            )
            processes.wait()
        else:
            processes.wait()
            run = Run.open_read_only(request.out)
        run.blocks()  # raises for damaged files, before any work is done
        processes.wait()
        if run.manifest.status == "done":
            return run
        start = time.perf_counter()
        data = make_data()
        data_seconds = time.perf_counter() - start
        folder = Path(request.out) / "tensorboard" if request.tensorboard and run.writes else None
        with tracker(folder) as track:

            def report(line: dict[str, Any]) -> None:
                run.report(line)
                track(line)

            seed = request.identity.seed
            request.method.train(data, request.settings, run, seed=seed, report=report, processes=processes)
        if not run.manifest.blocks:
            message = warnings_of(run.manifest)[0]
            raise Failure(f"{request.out}: {message}: nothing was learned; check the images and the noise")
        finished = dataclasses.replace(
            run.manifest, training_seconds=run.seconds, data_seconds=data_seconds, processes=processes.size
        )
        run.finish(finished, write_card(finished, request.noise))
        return run


def versions() -> dict[str, str]:
    """Versions of the software that trained the weights."""
    return {"bayescade": __version__, "torch": torch.__version__, "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    """The device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def summary(run: Run) -> dict[str, Any]:
    """The main results of a finished run."""
    manifest: Manifest = run.manifest
    return {
        "out": str(run.folder),
        "method": manifest.method,
        "case": manifest.case,
        "blocks": len(manifest.blocks),
        "validation_psnr": manifest.blocks[-1].validation_psnr,
        "training_seconds": manifest.training_seconds,
        "start_psnr": manifest.start.get("validation_psnr") if manifest.start is not None else None,
        "warning": "; ".join(warnings_of(manifest)) or None,
    }
