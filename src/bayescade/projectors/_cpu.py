"""Matrix-free projection on a CPU: image by image, threads over views (forward) or over rows of pixels (back)."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

import bayescade.kernels.projection_cpu as compiled
from bayescade.projectors._lines import Lines
from bayescade.projectors._parts import in_parts


def forward(
    lines: Lines,
    images: Tensor,  # (images, scans, height, width)
) -> Tensor:
    """A x: sinograms (images, scans, views, bins)."""
    sinograms = images.new_zeros((*images.shape[:2], *lines.sinogram_shape))
    _project(compiled.project, lines, images, sinograms)
    return sinograms


def derivatives(
    lines: Lines,
    images: Tensor,  # (images, scans, height, width)
) -> tuple[Tensor, Tensor]:
    """Derivatives of the sinograms with respect to the angle of the view and to the offset, (images, scans, views,
    bins) each."""
    by_angle, by_offset = (images.new_zeros((*images.shape[:2], *lines.sinogram_shape)) for _ in range(2))
    _project(compiled.project_derivatives, lines, images, by_angle, by_offset)
    return by_angle, by_offset


def _project(kernel: Any, lines: Lines, images: Tensor, *outputs: Tensor) -> None:
    """Calls the kernel for every image and all views."""
    for scan in range(images.shape[1]):
        views, bins, numbers = _scan(lines, scan)
        for index, image in enumerate(images[:, scan]):
            upright, transposed = (pad(side, (1, 2)).contiguous().numpy() for side in (image, image.mT))
            filled = [output[index, scan, :views, :bins].numpy() for output in outputs]
            in_parts(lambda *part: kernel(upright, transposed, *numbers, *part, *filled), views)  # noqa: B023


def adjoint(
    lines: Lines,
    sinograms: Tensor,  # (images, scans, views, bins)
) -> Tensor:
    """A' y: images (images, scans, height, width)."""
    weighted = sinograms * lines.factor

    def back(scan: int, sinogram: NDArray[Any], numbers: tuple[Any, ...], *part: Any) -> None:
        reach = lines.reach[scan].numpy()
        compiled.back_project(sinogram, lines.taps, *numbers, reach, *part)

    return _back(lines, weighted, lines.taps, back)


def interpolated(
    lines: Lines,
    sinograms: Tensor,  # (images, scans, views, bins)
) -> Tensor:
    """The sum over views of (dq / D)^2 times the sinogram interpolated linearly at b*: images (images, scans, height,
    width)."""

    def back(_: int, sinogram: NDArray[Any], numbers: tuple[Any, ...], *part: Any) -> None:
        compiled.interpolate_back(sinogram, 2, *numbers, *part)

    return _back(lines, sinograms, 2, back)


def interpolated_transpose(
    lines: Lines,
    images: Tensor,  # (images, scans, height, width)
) -> Tensor:
    """The transpose of `interpolated`: sinograms (images, scans, views, bins)."""
    sinograms = images.new_zeros((*images.shape[:2], *lines.sinogram_shape))
    for scan in range(images.shape[1]):
        views, bins, numbers = _scan(lines, scan)
        for index, image in enumerate(images[:, scan]):
            pixels, filled = image.contiguous().numpy(), sinograms[index, scan, :views, :bins].numpy()
            in_parts(lambda *part: compiled.transpose_interpolation(pixels, *numbers, *part, filled), views)  # noqa: B023
    return sinograms


def _back(lines: Lines, sinograms: Tensor, margin: int, back: Callable[..., None]) -> Tensor:
    """Calls `back` for every padded sinogram and all rows of pixels."""
    images = sinograms.new_empty((*sinograms.shape[:2], *lines.image_shape))
    for scan in range(sinograms.shape[1]):
        views, bins, numbers = _scan(lines, scan)
        for index, sinogram in enumerate(sinograms[:, scan, :views, :bins]):
            padded, image = pad(sinogram, (margin, margin)).numpy(), images[index, scan].numpy()
            in_parts(lambda *part: back(scan, padded, numbers, *part, image), lines.image_shape[0])  # noqa: B023
    return images


def _scan(lines: Lines, scan: int) -> tuple[int, int, tuple[NDArray[Any], ...]]:
    """Views and bins of a scan; cosines and sines of its views, and its numbers."""
    views, bins = lines.counts[scan].tolist()
    arrays = lines.cosine[scan, :views], lines.sine[scan, :views], lines.numbers[scan]
    return views, bins, tuple(array.numpy() for array in arrays)
