"""Gaussian distributions: random layers, their KL divergence from the prior, and moments of functions of a Gaussian."""
