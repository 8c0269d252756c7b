"""BDGD+: a cascade with random last layers and a variance of every pixel, aleatoric and epistemic."""

from functools import partial

from bayescade.methods import _cascade

ANY_GEOMETRY = False  # weights belong to a geometry

BLOCK = "heteroscedastic"  # the kind of block on the shelf

Settings = _cascade.Settings
preset = _cascade.preset
train = partial(_cascade.train, BLOCK)
load = partial(_cascade.load, BLOCK)
