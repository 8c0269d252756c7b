"""Blocks: (state, inputs) -> Gaussian. Three kinds, each with `build(settings, generator, inputs)`, and three runners."""
