"""Four disjoint splits of the images, each with a different seed.

train; validation (to choose, e.g. settings); calibration (of intervals); test (for scores).
"""

from bayescade.errors import UserError
from bayescade.seeds import check_seed, derived_seed

SPLITS = ("train", "validation", "calibration", "test")


def split_seed(seed: int, split: str) -> int:
    """The seed of a split: different splits and different seeds give independent random numbers."""
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'; there are: {', '.join(SPLITS)}")
    check_seed(seed)
    return derived_seed(seed, split)
