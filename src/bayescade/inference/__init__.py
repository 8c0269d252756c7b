"""Inference: samples of a cascade, their moments, and how far the moments are from those of endless samples."""
