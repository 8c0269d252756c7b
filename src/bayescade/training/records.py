"""The record of a trained block: how far its posterior moved, and whether its variance fits its errors."""

from typing import Any

import torch

from bayescade.blocks.block import Block
from bayescade.training.losses import nll
from bayescade.training.posterior import median_log_std
from bayescade.training.stage import Stage, predictions

LEAST_CHANGE = 0.1  # change of the log standard deviations below which the posterior has not learned
MOST_RATIO = 4.0  # factor between mean variance and mean squared error at which there is a warning
COLLAPSED = 0.5  # share of pixels at the variance floor at which there is a warning


def describe(
    block: Block,
    validation: Stage,
    batch: int,
    log_stds: tuple[list[float], list[float]],  # medians at the start and as trained
    refitted: bool,
) -> dict[str, Any]:
    """The record of a block, without its score; `warnings` are sentences without the block's number."""
    warnings: list[str] = []
    record: dict[str, Any] = {"warnings": warnings}
    start, trained = log_stds
    final = median_log_std(block)
    if final:
        record["log_std"] = {"start": start, "trained": trained, "final": final}
        if not refitted and abs(final[0] - start[0]) < LEAST_CHANGE:
            warnings.append("the posterior has not moved from its start; do not trust the epistemic maps")
    if block.variance is not None:
        record |= describe_variance(block, validation, batch, warnings)
    return record


def describe_variance(block: Block, validation: Stage, batch: int, warnings: list[str]) -> dict[str, Any]:
    """Likelihood, predicted variance over squared error, and the share of pixels at the floor."""
    variance = block.variance
    assert variance is not None
    scores, at_floor, predicted, squared_errors = [], [], [], []
    for truth, prediction in predictions(block, validation, batch):
        assert prediction.variance is not None
        scores.append(nll(prediction, truth).flatten(1).mean(1))
        predicted.append(prediction.variance.expand_as(truth).flatten(1).mean(1))
        squared_errors.append(((truth - prediction.mean) ** 2).flatten(1).mean(1))
        at_floor.append((prediction.variance < 2 * variance.floor).float().flatten(1).mean(1))
    variances, errors = torch.cat(predicted), torch.cat(squared_errors).clamp_min(1e-30)
    record: dict[str, Any] = {
        "validation_nll": float(torch.cat(scores).mean()),
        "variance_over_mse": float(variances.mean() / errors.mean()),
        "variance_over_mse_median": float((variances / errors).median()),
    }
    # A single bad image with a large variance can dominate the mean; so the warning needs the median image too.
    both = record["variance_over_mse"], record["variance_over_mse_median"]
    if all(not 1 / MOST_RATIO < ratio < MOST_RATIO for ratio in both):
        warnings.append(
            f"the mean variance is {both[0]:.2g} times the mean squared error ({both[1]:.2g} times in the median image)"
        )
    if variance.last is not None:
        record["share_at_floor"] = float(torch.cat(at_floor).mean())
        if record["share_at_floor"] > COLLAPSED:
            warnings.append(
                f"the variance has collapsed, {record['share_at_floor']:.0%} of the pixels are at its floor"
            )
    return record
