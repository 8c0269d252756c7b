"""A convolution whose weights are set by who makes it."""

from typing import final

from torch import nn


@final
class Convolution(nn.Conv2d):
    """Of odd size: images keep theirs. `torch.nn.utils.skip_init` does the same behind an import of a second or more."""

    def __init__(self, into: int, out: int, size: int):
        super().__init__(into, out, size, padding=size // 2)

    def reset_parameters(self) -> None:
        """Leaves the weights as they lie in memory, and torch's own generator alone."""
