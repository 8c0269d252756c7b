"""The record of a trained block: how much its posterior changed, and whether its variance fits the actual errors."""

from typing import Any

import torch

from bayescade.blocks.block import Block
from bayescade.training.losses import nll
from bayescade.training.posterior import median_log_std
from bayescade.training.stage import Stage, predictions

LEAST_CHANGE = 0.1  # change of the median log standard deviation below which there is a warning
MOST_RATIO = 4.0  # largest factor between mean variance and mean squared error without a warning
COLLAPSED = 0.5  # largest fraction of pixels at the variance floor (below twice the floor) without a warning


def describe(
    block: Block,
    validation: Stage,
    batch: int,
    log_stds: tuple[list[float], list[float]],  # `median_log_std` before training, and between training and refit
    refitted: bool,  # whether the posterior was refitted after training
) -> dict[str, Any]:
    """The record of a block, without its validation PSNR; its `warnings` do not contain the number of the block."""
    warnings: list[str] = []
    record: dict[str, Any] = {"warnings": warnings}
    start, trained = log_stds
    final = median_log_std(block)
    if final:
        record["log_std"] = {"start": start, "trained": trained, "final": final}
        if not refitted and abs(final[0] - start[0]) < LEAST_CHANGE:
            warnings.append("the posterior is almost the same as before training; do not trust the epistemic maps")
    if block.variance is not None:
        record |= describe_variance(block, validation, batch, warnings)
    return record


def describe_variance(block: Block, validation: Stage, batch: int, warnings: list[str]) -> dict[str, Any]:
    """NLL, ratio of predicted variance to squared error, and fraction of pixels at the floor; adds to `warnings`."""
    variance = block.variance
    assert variance is not None
    nlls, at_floor, predicted, squared_errors = [], [], [], []
    for truth, prediction in predictions(block, validation, batch):
        assert prediction.variance is not None
        nlls.append(nll(prediction, truth).flatten(1).mean(1))
        predicted.append(prediction.variance.expand_as(truth).flatten(1).mean(1))
        squared_errors.append(((truth - prediction.mean) ** 2).flatten(1).mean(1))
        at_floor.append((prediction.variance < 2 * variance.floor).float().flatten(1).mean(1))
    variances, errors = torch.cat(predicted), torch.cat(squared_errors).clamp_min(1e-30)
    record: dict[str, Any] = {
        "validation_nll": float(torch.cat(nlls).mean()),
        "variance_over_mse": float(variances.mean() / errors.mean()),
        "variance_over_mse_median": float((variances / errors).median()),
    }
    # A single bad image with a large variance can dominate the mean. So the ratio of the median image must be bad too.
    ratios = record["variance_over_mse"], record["variance_over_mse_median"]
    if all(not 1 / MOST_RATIO < ratio < MOST_RATIO for ratio in ratios):
        warnings.append(
            f"the mean variance is {ratios[0]:.2g} times the mean squared error "
            f"({ratios[1]:.2g} times in the median image)"
        )
    if variance.last is not None:
        record["share_at_floor"] = float(torch.cat(at_floor).mean())
        if record["share_at_floor"] > COLLAPSED and not block.levelled:  # else: empty pixels, with an error of zero
            warnings.append(
                f"the variance has collapsed, {record['share_at_floor']:.0%} of the pixels are at its floor"
            )
    return record
