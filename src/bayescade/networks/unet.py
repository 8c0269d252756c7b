"""A U-Net that corrects an image: image + net(image) (Ronneberger et al. 2015; Jin et al. 2017 for tomography).

Every scale has two 3 x 3 convolutions with group norm and ReLU. From one scale to the next, height and width are
halved, and the number of channels is doubled up to a limit. The network learns the correction. Its last convolution
starts with zero weights, so before training the output is the input image.
"""

from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from bayescade.networks._conv import convolution


@final
class UNet(nn.Module):
    """(image, sinogram) -> image; the sinogram is not used."""

    def __init__(
        self,
        channels: int,  # of the first scale
        most_channels: int,  # limit of the channels of a scale
        scales: int,  # number of scales
        generator: torch.Generator,
    ):
        super().__init__()
        counts = [min(channels * 2**scale, most_channels) for scale in range(scales)]  # channels of each scale
        self.down = nn.ModuleList([convolution_pair(*pair, generator) for pair in pairwise([1, *counts])])
        self.up = nn.ModuleList(
            [convolution_pair(coarse + fine, fine, generator) for fine, coarse in reversed(list(pairwise(counts)))]
        )
        self.last = convolution(counts[0], 1, generator, kernel_size=1)
        nn.init.zeros_(self.last.weight)

    def prepare(self, image: Tensor, sinogram: Tensor) -> None:
        """Does nothing: this network has no factors that must be set from images before training."""

    def forward(self, image: Tensor, sinogram: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        multiple = 2 ** (len(self.down) - 1)  # height and width are padded to a multiple of this number
        h = pad(image, (0, -width % multiple, 0, -height % multiple))
        skips = []
        for scale, layers in enumerate(self.down):
            h = layers(nn.functional.max_pool2d(h, 2) if scale else h)
            skips.append(h)
        for layers, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            h = layers(torch.cat([nn.functional.interpolate(h, scale_factor=2.0, mode="nearest"), skip], 1))
        return image + self.last(h)[..., :height, :width]

    def clipped(self, image: Tensor, sinogram: Tensor) -> Tensor:
        """The output of the network, with negative values set to 0."""
        return relu(self(image, sinogram))


def convolution_pair(in_channels: int, out_channels: int, generator: torch.Generator) -> nn.Sequential:
    """Two convolutions, each followed by group norm and ReLU."""
    layers: list[nn.Module] = []
    groups = max(number for number in (1, 2, 4, 8) if out_channels % number == 0)
    for channels in (in_channels, out_channels):
        layers += [convolution(channels, out_channels, generator), nn.GroupNorm(groups, out_channels)]
        layers += [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
