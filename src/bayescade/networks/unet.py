"""A U-Net that corrects an image: image + net(image) (Ronneberger et al. 2015; Jin et al. 2017 for tomography).

Every scale has two 3 x 3 convolutions with group norm and ReLU; scales are half as large and have twice the channels, up to a
limit. The network learns the correction. Its last convolution starts at zero, so training starts at the input image.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from bayescade.networks._conv import convolution


@final
class UNet(nn.Module):
    """(image, sinogram) -> image; the sinogram is not used."""

    def __init__(self, channels: int, most_channels: int, scales: int, generator: torch.Generator):
        super().__init__()
        widths = [min(channels * 2**scale, most_channels) for scale in range(scales)]
        self.down = nn.ModuleList(
            [pair(into, width, generator) for into, width in zip([1, *widths], widths, strict=False)]
        )
        self.up = nn.ModuleList(
            [pair(widths[scale + 1] + widths[scale], widths[scale], generator) for scale in reversed(range(scales - 1))]
        )
        self.last = convolution(widths[0], 1, generator, size=1)
        nn.init.zeros_(self.last.weight)

    def prepare(self, image: Tensor, sinogram: Tensor) -> None:
        """Does nothing: no scale depends on the images."""

    def forward(self, image: Tensor, sinogram: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        step = 2 ** (len(self.down) - 1)
        h = pad(image, (0, -width % step, 0, -height % step))
        skips = []
        for scale, layers in enumerate(self.down):
            h = layers(nn.functional.max_pool2d(h, 2) if scale else h)
            skips.append(h)
        for layers, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            h = layers(torch.cat([nn.functional.interpolate(h, scale_factor=2.0, mode="nearest"), skip], 1))
        return image + self.last(h)[..., :height, :width]

    def clipped(self, image: Tensor, sinogram: Tensor) -> Tensor:
        """The image with negative values set to 0."""
        return relu(self(image, sinogram))


def pair(into: int, out: int, generator: torch.Generator) -> nn.Sequential:
    """Two convolutions with norm and ReLU."""
    layers: list[nn.Module] = []
    for first in (into, out):
        groups = max(number for number in (1, 2, 4, 8) if out % number == 0)
        layers += [convolution(first, out, generator), nn.GroupNorm(groups, out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
