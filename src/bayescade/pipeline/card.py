"""The card of a trained model: what it was trained on, how long, how good it is, and what it is not for."""

from collections.abc import Mapping
from typing import Any

from bayescade.physics.geometry import geometry_from_json


def write_card(manifest: Mapping[str, Any]) -> str:
    """The card as Markdown, from the manifest."""
    geometry = geometry_from_json(manifest["geometry"])
    settings, blocks = manifest["settings"], manifest["blocks"]
    noise = settings["noise"]
    level = (
        f"{noise['photons']:g} photons per bin" if noise["photons"] else f"{100 * noise['relative']:g} % Gaussian noise"
    )
    kind = "the paper's own training ellipses" if settings["data"]["paper_set"] else "random ellipses"
    own = f"images of {settings['images']['name']}" if settings["images"] else f"{kind}, values in [0, 1]"
    images = f"{settings['data']['images']} {own}"
    height, width = geometry.image_shape
    last = blocks[-1]
    lines = [
        f"# {manifest['method']} for {manifest['case']}",
        "",
        f"- **Scan**: {geometry.views} views x {geometry.bins} bins, {height} x {width} pixels, {level}; "
        f"geometry {manifest['geometry_hash']}",
        f"- **Trained on**: {images}; seed {manifest['seed']}, preset {manifest['preset']}",
        what_of(manifest),
        f"- **Training time**: {manifest['training_seconds']:.1f} s on {manifest.get('processes', 1)} x {manifest['device']} "
        f"(precision {precision_of(manifest)})",
        f"- **Validation**: {last['validation_psnr']:.2f} dB on "
        f"{settings['data']['validation_images']} images of the validation split"
        + (", mean weights" if "log_std" in last else ""),
    ]
    scores = manifest.get("scores")
    if scores:
        lines.append(
            f"- **The paper's test set**: {scores['psnr']:.2f} dB on the ellipses, {scores['psnr_shepp_logan']:.2f} dB on the "
            f"Shepp-Logan phantom ({scores['samples']} samples, noise seed {scores['seed']})"
        )
    if "share_at_floor" in last:
        lines.append(
            f"- **Variance floor**: {settings['block']['variance_floor']:g}; {last['share_at_floor']:.1%} of the "
            "validation pixels are at it"
        )
    if "log_std" in last:
        lines.append(
            f"- **Posterior** of the last block: median log standard deviation {last['log_std']['start'][0]:.2f} at the start, "
            f"{last['log_std']['final'][0]:.2f} at the end; temperature {settings['greedy']['temperature']:g}"
        )
    if "variance_over_mse" in last:
        median = last.get("variance_over_mse_median")
        lines.append(
            f"- **Mean variance** over mean squared error on the validation images: {last['variance_over_mse']:.2f}"
            + (f", in the median image {median:.2f}" if median is not None else "")
        )
    lines += [f"- **Warning**: {text}" for text in warnings_of(manifest)]
    lines += [
        f"- **Made by** bayescade {manifest['versions']['bayescade']}, torch {manifest['versions']['torch']}. "
        "Licence: BSD-3-Clause",
        "- **Not for** diagnosis, other geometries or noise levels, or images unlike those it was trained on; "
        + ("its variances are not calibrated" if "variance_over_mse" in last else "it says nothing about its doubt"),
        "",
    ]
    return "\n".join(lines)


def what_of(manifest: Mapping[str, Any]) -> str:
    """The line that says what was trained."""
    settings, blocks = manifest["settings"], manifest["blocks"]
    epochs = settings["fit"]["epochs"]
    if "greedy" in settings:
        return (
            f"- **Cascade**: {len(blocks)} blocks with {settings['block']['channels']} channels, "
            f"loss {settings['greedy']['loss']}, {epochs} epochs a block"
        )
    shape = ", ".join(f"{name} {value}" for name, value in settings["network"].items())
    return f"- **Network**: {shape}; trained end to end, {epochs} epochs"


def precision_of(manifest: Mapping[str, Any]) -> str:
    """The precision that `auto` stood for on the device of the training."""
    precision = str(manifest["settings"]["fit"]["precision"])
    if precision != "auto":
        return precision
    return "float32" if manifest["device"].startswith("CPU") else "bf16 features, float32 sums and images"


def warnings_of(manifest: Mapping[str, Any]) -> list[str]:
    """All warnings of a run."""
    ended = manifest.get("ended", {}).get("warnings", [])
    return [text for block in manifest["blocks"] for text in block["warnings"]] + ended
