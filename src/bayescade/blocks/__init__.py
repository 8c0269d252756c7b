"""Blocks: (state, inputs) -> Gaussian with the next image as its mean.

There are three kinds of block, each in a file with a function `build(settings, generator, inputs)`: `deterministic`,
`homoscedastic` and `heteroscedastic`. A runner computes a trained block; the three runners are in `runner` (the plain
runner), `fused` and `perturbation`.
"""
