"""Gaussian distributions: random layers, their KL divergence from the prior, and moments after a function."""
