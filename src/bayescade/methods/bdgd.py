"""BDGD: a cascade whose last layers have Gaussian weights, with one aleatoric variance for all pixels."""

from functools import partial

from bayescade.blocks import homoscedastic
from bayescade.methods import _cascade, _cascade_settings

ANY_GEOMETRY = False  # the weights are valid only for the problem for which they were trained

Settings = _cascade_settings.Settings
preset = _cascade_settings.preset
train = partial(_cascade.train, homoscedastic.build)
load = partial(_cascade.load, homoscedastic.build)
