"""Gaussians: random layers, their divergence from the prior, and what becomes of a Gaussian on its way."""
