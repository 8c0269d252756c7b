"""Uncertainty: how good a statement of doubt is. Pure functions of images, variances and truths."""
