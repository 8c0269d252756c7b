"""Fused GPU kernels. The plain layers of `bayes` and `blocks` are their reference, and what runs on a CPU."""
