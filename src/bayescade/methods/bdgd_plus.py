"""BDGD+: a cascade with random last layers and a variance of every pixel, aleatoric and epistemic."""

from functools import partial

from bayescade.blocks import heteroscedastic
from bayescade.methods import _cascade, _cascade_settings

ANY_GEOMETRY = False  # weights are valid only for the problem of the training

Settings = _cascade_settings.Settings
preset = _cascade_settings.preset
train = partial(_cascade.train, heteroscedastic.build)
load = partial(_cascade.load, heteroscedastic.build)
