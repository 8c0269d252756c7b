"""Which kernels compute a matrix-free projector. numba is imported where a CPU needs it: that takes 0.4 s."""

from types import ModuleType

import torch

import bayescade.projectors._gpu as gpu
from bayescade.kernels._triton import available


def has_matrix_free(device: torch.device) -> bool:
    """Whether there are matrix-free kernels for the device."""
    return device.type == "cpu" or available()


def matrix_free_kernels(device: torch.device) -> ModuleType:
    """`_gpu` or `_cpu`: forward, adjoint, interpolated and its transpose, derivatives."""
    if device.type != "cpu":
        return gpu
    import bayescade.projectors._cpu as cpu

    return cpu


def matrix_kernels() -> ModuleType:
    """`kernels.matrix_entries`: the entries of a stored matrix."""
    import bayescade.kernels.matrix_entries as entries

    return entries
