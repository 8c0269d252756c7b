"""Phantoms: each file has `generate(count, shape, *, seed, first, supersample, device)`."""
