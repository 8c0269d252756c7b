"""Training data of a model."""

import dataclasses

from bayescade.physics.problem import InverseProblem
from bayescade.storage.image_store import ImageStore

Pair = tuple[ImageStore, ImageStore]  # data (images, *range_shape) and truths (images, 1, height, width)


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Data and truths of one problem, for training and for validation."""

    problem: InverseProblem
    training: Pair
    validation: Pair
