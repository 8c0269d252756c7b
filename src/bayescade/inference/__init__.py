"""Inference: samples of the output of a cascade, their moments, and the Monte-Carlo errors of the moments."""
