"""Random numbers: one seed determines all random numbers of a run."""

import hashlib

from bayescade.errors import UserError


def check_seed(seed: int) -> None:
    """Raises an error unless the seed is from 0 to 2^63 - 1."""
    if not 0 <= seed < 2**63:
        raise UserError(f"seed: expected a whole number of at least 0 and below 2^63, got {seed}")


def derived_seed(*parts: int | str) -> int:
    """One 63-bit seed from several parts, by their hash: different parts give independent random numbers."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def log_uniform(least: float, most: float, u: float) -> float:
    """The number at the fraction u of the way from `least` to `most` on a logarithmic scale; log-uniform if u is uniform."""
    return float(least * (most / least) ** u)
