"""The block by the fused kernels: the same numbers as `Block.forward`, up to rounding, many times faster on a GPU."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from bayescade.bayes.gaussian import Gaussian, safe_sqrt
from bayescade.bayes.layers import LastConv
from bayescade.blocks._block import Block, MeanDraw, Trunk
from bayescade.blocks.heteroscedastic import VarianceNet
from bayescade.kernels.head import head
from bayescade.kernels.stack import Layer, filled, head_layout, layer_of, run_layers, stack


def fused(
    block: Block,
    x: Tensor,  # (batch, 1, height, width)
    gradient: Tensor,  # (batch, 1, height, width)
    noise: Sequence[Tensor],  # (batch, 1, height, width) per random layer; empty = the mean of the weights
    dtype: torch.dtype,  # of features: bfloat16, float16, float32 (as TF32), or float64
) -> Gaussian:
    """`block(x, gradient, ActivationDraw(noise))`."""
    shape = (x.shape[-2], x.shape[-1])
    planes = planes_of(block, x, gradient, dtype)
    drawn = list(noise)

    def output(layers: Sequence[Layer], extra: Tensor | None, last: LastConv) -> tuple[Tensor, Tensor]:
        weights, variances = head_layout(last.weight)[0], head_layout(last.std() ** 2)[0]
        mean, variance, features = stack(planes, extra, layers, weights, variances, shape)
        out = mean.reshape(x.shape) + last.bias
        if last.random and drawn:
            out = out + safe_sqrt(variance.reshape(x.shape) + last.jitter) * drawn.pop(0)
        return out, features

    out, features = output(trunk_layers(block.trunk), None, block.last)
    image = relu(x + block.output_scale * out)
    if not isinstance(block.variance, VarianceNet):
        return Gaussian(image, None if block.variance is None else block.variance(x, x, MeanDraw()))
    net = block.variance
    z, _ = output(body_layers(net), features if net.sees_features else None, net.last)
    return Gaussian(image, net.of(z))


@final
class FusedImages:
    """A trained block that gives images for draws of its weights: its features laid out once, for many calls."""

    def __init__(self, block: Block, dtype: torch.dtype):
        self.block = block
        self.dtype = dtype
        with torch.no_grad():
            self.layers = [prepared(layer, dtype) for layer in trunk_layers(block.trunk)]

    @torch.no_grad()
    def image(
        self,
        x: Tensor,  # (batch, 1, height, width), or with samples in front (samples * batch, ...)
        gradient: Tensor,  # like x
        weights: Tensor,  # (samples, channels, 3, 3): draws of the last layer
        shared: bool,  # every draw for every image; else each sample has its own
    ) -> Tensor:
        """`block.image(x, gradient, WeightDraw(...))`, (samples * batch, 1, height, width)."""
        shape = (x.shape[-2], x.shape[-1])
        planes = planes_of(self.block, x, gradient, self.dtype)
        features = run_layers(planes, None, self.layers, shape)[-1]
        out, _ = head(features, head_layout(weights).contiguous(), None, shape, shared)
        out = out.reshape(-1, *x.shape[1:]).to(x.dtype) + self.block.last.bias
        before = x.repeat(len(weights), 1, 1, 1) if shared else x
        return relu(before + self.block.output_scale * out)


def planes_of(block: Block, x: Tensor, gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Image and scaled gradient as planes, (2, pixels)."""
    return torch.stack([x.flatten(), (gradient * block.gradient_scale).flatten()]).to(dtype)


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
