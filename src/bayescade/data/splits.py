"""Four disjoint splits, each with its own seed: train, validation (for choices), calibration, test (scores)."""

from bayescade.errors import UserError
from bayescade.seeds import check_seed, derived_seed

SPLITS = ("train", "validation", "calibration", "test")


def split_seed(seed: int, split: str) -> int:
    """The seed of a split: the streams of different splits and of different seeds are independent."""
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'; there are: {', '.join(SPLITS)}")
    check_seed(seed)
    return derived_seed(seed, split)
