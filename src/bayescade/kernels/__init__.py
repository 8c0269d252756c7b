"""Fused GPU kernels. The plain layers of `bayes` and `blocks` are their reference, and run on a CPU."""
