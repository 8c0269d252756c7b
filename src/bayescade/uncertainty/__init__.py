"""Uncertainty: scores of predictive variances. Pure functions of images, variances and truths."""
