"""The block by the fused kernels: the same numbers as `Block.forward`, up to rounding, many times faster on a GPU."""

import dataclasses
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from bayescade.bayes.gaussian import Gaussian, safe_sqrt
from bayescade.bayes.last_layer import Inputs
from bayescade.bayes.layers import KERNEL, LastConv
from bayescade.blocks.block import Block, Trunk
from bayescade.blocks.heteroscedastic import VarianceNet
from bayescade.blocks.homoscedastic import OneVariance
from bayescade.kernels.frame import Frame
from bayescade.kernels.last_layer import curvature, head, head_image
from bayescade.kernels.stack import Layer, filled, head_layout, layer_of, run_layers, stack


def fused(
    block: Block,
    x: Tensor,  # (batch, 1, height, width)
    gradient: Tensor,  # (batch, 1, height, width)
    noise: Sequence[Tensor],  # (batch, 1, height, width) per random layer; empty = the mean of the weights
    dtype: torch.dtype,  # of features: bfloat16, float16, float32, or float64
) -> Gaussian:
    """`block(x, gradient, ActivationDraw(noise))`."""
    frame = frame_of(x)
    planes = planes_of(block, x, gradient, frame, dtype)
    drawn = list(noise)

    def output(layers: Sequence[Layer], extra: Tensor | None, last: LastConv) -> tuple[Tensor, Tensor]:
        weights, variances = head_layout(last.weight)[0], head_layout(last.std() ** 2)[0]
        mean, variance, features = stack(planes, extra, layers, weights, variances, frame)
        out = mean.reshape(x.shape) + last.bias
        if last.random and drawn:
            out = out + safe_sqrt(variance.reshape(x.shape) + last.jitter) * drawn.pop(0)
        return out, features

    out, features = output(trunk_layers(block.trunk), None, block.last)
    image = relu(x + block.output_scale * out)
    if not isinstance(block.variance, VarianceNet):
        return Gaussian(image, one_variance(block))
    net = block.variance
    z, _ = output(body_layers(net), features if net.sees_features else None, net.last)
    return Gaussian(image, net.of(z))


@dataclasses.dataclass(frozen=True)
class Features:
    """What a block's last layers see of some images."""

    frame: Frame
    planes: Tensor
    common: Tensor


@final
class FusedBlock:
    """A trained block by the fused kernels, without gradients: its weights laid out once, for many calls."""

    def __init__(self, block: Block, dtype: torch.dtype):
        self.block = block
        self.dtype = dtype
        net = block.variance
        self.net = net if isinstance(net, VarianceNet) else None
        self.laid_out: dict[LastConv, tuple[Tensor, Tensor]] = {}  # means and variances of the random layers
        with torch.no_grad():
            self.trunk = [prepared(layer, dtype) for layer in trunk_layers(block.trunk)]
            self.body = [prepared(layer, dtype) for layer in body_layers(self.net)] if self.net is not None else []

    @torch.no_grad()
    def features(self, x: Tensor, gradient: Tensor) -> Features:
        """`block.features(x, gradient)`."""
        frame = frame_of(x)
        planes = planes_of(self.block, x, gradient, frame, self.dtype)
        return Features(frame, planes, run_layers(planes, None, self.trunk, frame)[-1])

    @torch.no_grad()
    def image(
        self,
        x: Tensor,  # (batch, 1, height, width), or with samples in front (samples * batch, ...)
        features: Features,  # of x
        weights: Tensor,  # (samples, 16, in): draws of the last layer, in the layout of the kernels
        shared: bool,  # every draw for every image; else each sample has its own
    ) -> Tensor:
        """`block.image(x, gradient, WeightDraw(...))`, (samples * batch, 1, height, width)."""
        last, scale = self.block.last, self.block.output_scale
        out = head_image(features.common, weights, x.contiguous(), scale, last.bias, features.frame, shared)
        return out.to(x.dtype).reshape(-1, *x.shape[1:])

    @torch.no_grad()
    def variance(self, features: Features, weights: Tensor, shared: bool) -> Tensor | None:
        """The variance around that image, for draws of the variance network's last layer."""
        if self.net is None:
            return one_variance(self.block)
        last, frame = self.net.last, features.frame
        z, _ = head(self._variance_features(features), weights, None, frame, shared)
        return self.net.of(as_images(z, frame, last) + last.bias)

    @torch.no_grad()
    def moments(self, x: Tensor, features: Features) -> tuple[Gaussian, Tensor | None]:
        """`block.moments(x, gradient)`."""
        image = self.block.moments_of(x, *self._moments(self.block.last, features.common, features.frame))
        if self.net is None:
            return image, one_variance(self.block)
        z = self._moments(self.net.last, self._variance_features(features), features.frame)
        return image, self.net.expected_of(*z)

    def last_inputs(self, features: Features) -> Inputs:
        """What the image's last layer sees."""
        return self._inputs(self.block.last, features.common, features.frame)

    @torch.no_grad()
    def at_mean(self, features: Features) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """`block.variance.at_mean(...)`."""
        if self.net is None:
            variance = one_variance(self.block)
            assert variance is not None
            return variance, None
        inputs = self._inputs(self.net.last, self._variance_features(features), features.frame)
        variance, information = self.net.informed(inputs.output_mean(self.net.last))
        return variance, (inputs, information)

    @staticmethod
    def _inputs(last: LastConv, features: Tensor, frame: Frame) -> "FusedInputs":
        return FusedInputs(features, frame, last.weight.shape[1])

    def _variance_features(self, features: Features) -> Tensor:
        assert self.net is not None
        extra = features.common if self.net.sees_features else None
        return run_layers(features.planes, extra, self.body, features.frame)[-1]

    def _moments(self, last: LastConv, features: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        if last not in self.laid_out:
            self.laid_out[last] = last_layout(last.weight), last_layout(last.std() ** 2)
        mean, variance = head(features, *self.laid_out[last], frame, shared=True)
        return as_images(mean, frame, last) + last.bias, as_images(variance, frame, last) + last.jitter


@final
@dataclasses.dataclass(frozen=True)
class FusedInputs:
    """What a last layer sees of some images, as the kernels keep it."""

    features: Tensor  # (1, room and places, in)
    frame: Frame
    channels: int

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.features.numel() * self.features.element_size()

    def output_mean(self, layer: LastConv) -> Tensor:
        """The layer's output with mean weights, (images, 1, height, width)."""
        mean, _ = head(self.features, last_layout(layer.weight), None, self.frame, shared=True)
        return as_images(mean, self.frame, layer) + layer.bias

    def output_variance(self, layer: LastConv) -> Tensor:
        """The variance of the output, (images, 1, height, width)."""
        laid_out = last_layout(layer.std() ** 2)
        _, variance = head(self.features, laid_out, laid_out, self.frame, shared=True)
        return as_images(variance, self.frame, layer) + layer.jitter

    def curvature(
        self,
        weight: Tensor,  # (images, 1, height, width)
    ) -> Tensor:
        """The sums of squares of the features on a pixel, weighted, (channels, 3, 3) in float64."""
        taps = curvature(self.features, weight, self.frame)[: KERNEL * KERNEL, : self.channels]
        return taps.T.reshape(-1, KERNEL, KERNEL)


def as_images(pixels: Tensor, frame: Frame, layer: LastConv) -> Tensor:
    """What a kernel made of a layer's inputs, (images, 1, height, width) in the layer's precision."""
    return pixels.to(layer.bias.dtype).reshape(-1, 1, frame.height, frame.width)


def last_layout(
    weights: Tensor,  # (samples, channels, 3, 3)
) -> Tensor:
    """Weights of a last layer as the kernels want them, (samples, 16, in)."""
    return head_layout(weights).contiguous()


def one_variance(block: Block) -> Tensor | None:
    """The variance of a block that has one for all pixels; None where it has none."""
    if block.variance is None:
        return None
    assert isinstance(block.variance, OneVariance)
    return block.variance.one()


def frame_of(x: Tensor) -> Frame:
    """How such images lie in memory."""
    return Frame(len(x), x.shape[-2], x.shape[-1])


def planes_of(block: Block, x: Tensor, gradient: Tensor, frame: Frame, dtype: torch.dtype) -> Tensor:
    """Image and scaled gradient as planes."""
    return frame.planes([x, gradient], dtype, [None, block.gradient_scale])


def prepared(layer: Layer, dtype: torch.dtype) -> Layer:
    """The layer in the precision of the work."""
    planes = layer.planes.to(dtype).contiguous() if layer.planes is not None else None
    weights = layer.weights.to(dtype).contiguous() if layer.weights is not None else None
    return Layer(planes, weights, layer.bias.contiguous())


def trunk_layers(trunk: Trunk) -> list[Layer]:
    """The two branches side by side as groups, then the common part."""
    image, gradient = convs(trunk.image), convs(trunk.gradient)
    pairs = list(zip(image, gradient, strict=True))
    layers = [layer_of([conv.weight for conv in pairs[0]], None, biases(pairs[0]))]
    layers += [layer_of(None, [conv.weight for conv in pair], biases(pair)) for pair in pairs[1:]]
    first, *rest = convs(trunk.common)
    each = first.in_channels // 2
    halves = [pad(half, (0, 0, 0, 0, 0, filled(each) - each)) for half in first.weight.split(each, 1)]
    layers.append(layer_of(None, [torch.cat(halves, 1)], [bias(first)]))
    return layers + [layer_of(None, [conv.weight], [bias(conv)]) for conv in rest]


def body_layers(net: VarianceNet) -> list[Layer]:
    """The variance network before its last layer: the inputs as planes, the common features beside them."""
    first, *rest = convs(net.body)
    features = [first.weight[:, 2:]] if net.sees_features else None
    layers = [layer_of([first.weight[:, :2]], features, [bias(first)])]
    return layers + [layer_of(None, [conv.weight], [bias(conv)]) for conv in rest]


def convs(sequence: nn.Sequential) -> list[nn.Conv2d]:
    """The convolutions of a sequence."""
    return [module for module in sequence if isinstance(module, nn.Conv2d)]


def bias(conv: nn.Conv2d) -> Tensor:
    """The bias of a convolution, which ours all have."""
    assert conv.bias is not None
    return conv.bias


def biases(pair: Sequence[nn.Conv2d]) -> list[Tensor]:
    """The biases of some convolutions."""
    return [bias(conv) for conv in pair]
