"""Four disjoint splits by seed: what is learned, what is chosen, what is calibrated and what is reported never meet."""

import numpy as np

from bayescade.errors import UserError

SPLITS = ("train", "validation", "calibration", "test")


def split_seed(seed: int, split: str) -> int:
    """The seed of a split: the streams of different splits and of different seeds are independent."""
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'; there are: {', '.join(SPLITS)}")
    if seed < 0:
        raise UserError(f"seed: expected a whole number of at least 0, got {seed}")
    return derived_seed(seed, SPLITS.index(split))


def derived_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers; different numbers give independent streams."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
