"""Training data of a model."""

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.problem import InverseProblem
from bayescade.storage.image_store import ImageStore

Pair = tuple[ImageStore, ImageStore]  # data (images, *range_shape) and truths (images, 1, height, width)
ProblemSet = tuple[InverseProblem, ImageStore, ImageStore]  # a problem, its data and its truths


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Data and truths for training and for validation, of one problem or of several."""

    training_sets: tuple[ProblemSet, ...]
    validation_sets: tuple[ProblemSet, ...]
    initial: Sequence[Mapping[str, Tensor]] = ()  # weights of the blocks of a trained cascade, to start from

    @classmethod
    def of(cls, problem: InverseProblem, training: Pair, validation: Pair) -> "TrainingData":
        """The data of one problem."""
        return cls(((problem, *training),), ((problem, *validation),))

    @property
    def problem(self) -> InverseProblem:
        """The problem, or the first of several."""
        return self.training_sets[0][0]

    @property
    def training(self) -> Pair:
        """Data and truths of the only problem, for training."""
        return only(self.training_sets)

    @property
    def validation(self) -> Pair:
        """Data and truths of the only problem, for validation."""
        return only(self.validation_sets)


def only(sets: tuple[ProblemSet, ...]) -> Pair:
    """Data and truths of the only set; raises if there are several."""
    if len(sets) != 1:
        raise UserError(f"training data: expected data of one problem for this method, got {len(sets)} problems")
    return sets[0][1:]
