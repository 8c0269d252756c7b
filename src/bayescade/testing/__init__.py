"""Conformance checks for new operators, methods and plugins: a test is one call.

Each check raises `AssertionError` with a message that says what is wrong.
"""

from bayescade.testing.blocks import check_block, check_runner
from bayescade.testing.data import check_noise, check_phantom
from bayescade.testing.methods import check_method, check_metric
from bayescade.testing.operators import check_fidelity, check_operator

__all__ = [
    "check_block",
    "check_fidelity",
    "check_method",
    "check_metric",
    "check_noise",
    "check_operator",
    "check_phantom",
    "check_runner",
]
