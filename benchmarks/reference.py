"""What the shipped models give for four scans each, stored, and compared with what they give now.

    python benchmarks/reference.py store benchmarks/reference.npz      before a change
    python benchmarks/reference.py compare benchmarks/reference.npz    after it

The scans are three ellipse phantoms and the Shepp-Logan phantom with 1 % noise, reconstructed on a CPU with 4 samples by the
plain layers and, for models with random weights, by perturbation. Stored are 512 pixels of each map. A difference is the
2-norm of the change over that of the map; for perturbation over that of the epistemic standard deviation.
"""

import argparse
import sys

import numpy as np
import torch

from bayescade import case_geometry, load_model, ray_transform
from bayescade.models import ANY_MODEL, list_models
from bayescade.phantoms import ellipses, shepp_logan

RUNNERS = {"plain": ["inference.runner=plain"], "perturbation": ["inference.runner=perturbation"]}
LIMITS = {"plain": 1e-5, "perturbation": 1e-2}
MAPS = ("image", "aleatoric", "epistemic")
SAMPLES, PIXELS = 4, 512


def scans(case: str) -> torch.Tensor:
    """Sinograms of the four phantoms, (4, 1, views, bins)."""
    truth = torch.cat([ellipses.generate(3, (128, 128), seed=1), shepp_logan.generate(1)])
    clean = ray_transform(case_geometry(case))(truth)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    return clean + 0.01 * clean.abs().mean((1, 2, 3), keepdim=True) * noise


def values(model: str) -> dict[str, np.ndarray]:
    """Maps of a model at the stored pixels, (4, 512) each."""
    method, case = model.split("/")
    pixels = np.random.default_rng(0).choice(128 * 128, PIXELS, replace=False)
    runners = {"bdgd": ("plain", "perturbation"), "bdgd-plus": ("plain", "perturbation"), "dgd": ("plain",)}
    found = {}
    for runner in runners.get(method, ("plain",)):
        settings = RUNNERS[runner] if method in runners else []
        result = load_model(model, settings=settings)(scans(case), samples=SAMPLES, seed=0)
        for name in MAPS:
            map_ = getattr(result, name)
            if map_ is not None:
                found[f"{model}:{runner}:{name}"] = map_.flatten(1)[:, pixels].numpy()
    return found


def difference(key: str, now: np.ndarray, before: dict[str, np.ndarray]) -> float:
    """The change of a map relative to its size, or to the epistemic standard deviation for perturbation."""
    model, runner, name = key.split(":")
    reference = before[key].astype(np.float64)
    size = reference
    if runner == "perturbation":
        epistemic = before[f"{model}:{runner}:epistemic"].astype(np.float64)
        size = np.sqrt(epistemic)
        if name == "epistemic":
            return float(np.linalg.norm(np.sqrt(now.astype(np.float64)) - size) / np.linalg.norm(size))
        if name == "aleatoric":
            size = reference
    return float(np.linalg.norm(now - reference) / np.linalg.norm(size))


def main() -> None:
    """Stores, or prints a line per map and fails where one changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=["store", "compare"])
    parser.add_argument("file")
    parser.add_argument("--models", nargs="*", help="names; by default all that are shipped for one scan")
    options = parser.parse_args()
    shipped = [model["name"] for model in list_models() if model["folder"] and model["name"] != ANY_MODEL]
    names = options.models or shipped
    if options.action == "store":
        np.savez_compressed(options.file, **{key: map_ for name in names for key, map_ in values(name).items()})
        return
    before = dict(np.load(options.file))
    worst = dict.fromkeys(LIMITS, 0.0)
    for name in names:
        for key, map_ in values(name).items():
            change = difference(key, map_, before)
            runner = key.split(":")[1]
            worst[runner] = max(worst[runner], change)
            print(f"{key:48} {change:.1e}{'' if change <= LIMITS[runner] else '   TOO LARGE'}", flush=True)
    print(", ".join(f"{runner}: at most {change:.1e} (limit {LIMITS[runner]:g})" for runner, change in worst.items()))
    sys.exit(any(change > LIMITS[runner] for runner, change in worst.items()))


if __name__ == "__main__":
    main()
