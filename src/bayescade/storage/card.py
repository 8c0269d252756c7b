"""The card of a trained model: training data, training time, scores, and the uses for which it is not suitable."""

import json

from bayescade.storage.manifest import Manifest, warnings_of


def write_card(
    manifest: Manifest,
    noise: str = "",  # the noise of the training data, in words
) -> str:
    """The text of the card in Markdown."""
    last = manifest.blocks[-1]
    lines = [
        f"# {manifest.method} for {manifest.case}",
        "",
        scan_line(manifest, noise),
        f"- **Trained on**: {images_of(manifest)}; seed {manifest.seed}, preset {manifest.preset}",
        network_line(manifest),
        f"- **Training time**: {manifest.training_seconds:.1f} s on {manifest.processes} x {manifest.device} "
        f"(precision {precision_of(manifest)})",
        *score_lines(manifest),
        *variance_lines(manifest),
        *(f"- **Warning**: {text}" for text in warnings_of(manifest)),
        f"- **Made by** bayescade {manifest.versions['bayescade']}, torch {manifest.versions['torch']}. "
        "Licence: BSD-3-Clause",
        "- **Not for** diagnosis, other geometries or noise levels, or images unlike those it was trained on; "
        + ("it gives no uncertainty" if last.variance_over_mse is None else "its variances are not calibrated"),
        "",
    ]
    return "\n".join(lines)


def scan_line(manifest: Manifest, noise: str) -> str:
    """The line about the scan or the problem."""
    if "scans" in manifest.settings and manifest.geometry is None:
        return f"- **Scans**: any parallel or flat fan beam, any units; trained on random geometries, {noise}"
    if manifest.geometry is None:
        return f"- **Problem**: {manifest.case}"
    geometry = json.loads(manifest.geometry)
    height, width = geometry["image_shape"]
    return (
        f"- **Scan**: {len(geometry['angles'])} views x {geometry['bins']} bins, {height} x {width} pixels, {noise}; "
        f"geometry {manifest.geometry_hash}"
    )


def images_of(manifest: Manifest) -> str:
    """The training images in words."""
    settings = manifest.settings
    kind = "training ellipses of the paper" if settings["data"].get("paper_set") else "random ellipses"
    if "scans" in settings:
        and_images = f" and images of {settings['images']['name']}" if settings["images"] else ""
        return f"{settings['data']['images']} scans of phantoms of many kinds{and_images}"
    source = f"images of {settings['images']['name']}" if settings["images"] else f"{kind}, values in [0, 1]"
    return f"{settings['data']['images']} {source}"


def network_line(manifest: Manifest) -> str:
    """The line about the network."""
    settings = manifest.settings
    if "greedy" in settings:
        return (
            f"- **Cascade**: {len(manifest.blocks)} blocks with {settings['block']['channels']} channels, "
            f"loss {settings['greedy']['loss']}, {settings['fit']['epochs']} epochs per block"
        )
    if "network" in settings:
        sizes = ", ".join(f"{name} {value}" for name, value in settings["network"].items())
        return f"- **Network**: {sizes}; trained end to end, {settings['fit']['epochs']} epochs"
    return f"- **Method**: {manifest.method}, a plugin"


def precision_of(manifest: Manifest) -> str:
    """The precision of the training; for the setting `auto`, the precision that it chose."""
    precision = str(manifest.settings.get("fit", {}).get("precision", "auto"))
    if precision != "auto":
        return precision
    return "float32" if manifest.device.startswith("CPU") else "bf16 features, float32 sums and images"


def score_lines(manifest: Manifest) -> list[str]:
    """The lines about the scores."""
    last, scores = manifest.blocks[-1], manifest.scores
    lines = [
        f"- **Validation**: {last.validation_psnr:.2f} dB on "
        f"{manifest.settings['data']['validation_images']} images of the validation split"
        + (", mean weights" if last.log_std is not None else "")
    ]
    if manifest.start is not None and manifest.start.get("validation_psnr") is not None:
        before = float(manifest.start["validation_psnr"])
        lines.append(
            f"- **Started from** {manifest.start['model']}: {before:.2f} dB on the same validation images, so the training "
            f"gained {last.validation_psnr - before:.2f} dB"
        )
    if scores:
        lines.append(
            f"- **The paper's test set**: {scores['psnr']:.2f} dB on the ellipses, {scores['psnr_shepp_logan']:.2f} dB "
            f"on the Shepp-Logan phantom ({scores['samples']} samples, noise seed {scores['seed']})"
        )
    return lines


def variance_lines(manifest: Manifest) -> list[str]:
    """The lines about the variance of the last block and about the posterior of its weights, if it has them."""
    settings, last = manifest.settings, manifest.blocks[-1]
    lines = []
    if last.share_at_floor is not None:
        lines.append(
            f"- **Variance floor**: {last.share_at_floor:.1%} of the validation pixels have a variance below 2 x floor"
        )
    if last.log_std is not None:
        lines.append(
            f"- **Posterior** of the last block: median log standard deviation {last.log_std['start'][0]:.2f} at the "
            f"start, {last.log_std['final'][0]:.2f} at the end; temperature {settings['greedy']['temperature']:g}"
        )
    if last.variance_over_mse is not None:
        median = last.variance_over_mse_median
        lines.append(
            f"- **Ratio of mean variance to mean squared error** on the validation images: {last.variance_over_mse:.2f}"
            + (f", median of the images {median:.2f}" if median is not None else "")
        )
    return lines
