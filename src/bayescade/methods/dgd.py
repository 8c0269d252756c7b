"""Deep gradient descent: a learned cascade that gives an image without uncertainty."""

from functools import partial

from bayescade.blocks import deterministic
from bayescade.methods import _cascade, _cascade_settings

ANY_GEOMETRY = False  # the weights are valid only for the problem for which they were trained

Settings = _cascade_settings.Settings
preset = _cascade_settings.preset
train = partial(_cascade.train, deterministic.build)
load = partial(_cascade.load, deterministic.build)
