"""Blocks: (image, gradient) -> Gaussian. Each file has `build(settings, generator)`; what they share is in `_block`."""
