"""BDGD+: a cascade whose last layers have Gaussian weights, with a separate aleatoric variance for every pixel."""

from functools import partial

from bayescade.blocks import heteroscedastic
from bayescade.methods import _cascade, _cascade_settings

ANY_GEOMETRY = False  # the weights are valid only for the problem for which they were trained

Settings = _cascade_settings.Settings
preset = _cascade_settings.preset
train = partial(_cascade.train, heteroscedastic.build)
load = partial(_cascade.load, heteroscedastic.build)
