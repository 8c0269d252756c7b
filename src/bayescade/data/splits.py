"""Four disjoint splits by seed: what is learned, what is chosen, what is calibrated and what is reported never meet."""

import hashlib

from bayescade.errors import UserError

SPLITS = ("train", "validation", "calibration", "test")


def split_seed(seed: int, split: str) -> int:
    """The seed of a split: the streams of different splits and of different seeds are independent."""
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'; there are: {', '.join(SPLITS)}")
    check_seed(seed)
    return derived_seed(seed, split)


def check_seed(seed: int) -> None:
    """Raises unless it is a seed."""
    if not 0 <= seed < 2**63:
        raise UserError(f"seed: expected a whole number of at least 0 and below 2^63, got {seed}")


def derived_seed(*parts: int | str) -> int:
    """One 63-bit seed from several parts, by their hash: different parts give independent streams."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
