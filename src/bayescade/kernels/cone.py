"""Cone-beam projection in Triton: forward, transpose, and the last step of FDK. `physics/cone_beam.py` has the
geometry.

Volumes are (images, height, width, slices) in memory and data (images, views, bins, rows): the rays of one bin are
neighbours, and so are the voxels that they meet. In the plane of a slice the weights are those of a fan beam
(`projectors/_lines.py`); along z they interpolate linearly between slices. `heights` are: height of row 0 and
distance of rows, both in pixels and divided by SDD; SOD in pixels."""

from __future__ import annotations

from bayescade.kernels._triton import jit, tl
from bayescade.kernels.projection import ray_of_tile, slopes


@jit
def project_cone(
    volumes,
    data,
    cosine,
    sine,
    numbers,
    counts,
    heights,
    height,
    width,
    slices,
    views,
    bins,
    rows,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Line integrals of a tile of rays: neighbouring bins and rows of one view."""
    tiles = tl.cdiv(rows, LEVELS)
    image = tl.program_id(2) // tiles
    row = (tl.program_id(2) % tiles) * LEVELS + tl.arange(0, LEVELS)
    scan = tl.program_id(1) * 0
    view, b, valid, c, s, u, q = ray_of_tile(cosine, sine, numbers, counts, views, 1, BINS, scan)
    first_height, height_step, distance = tl.load(heights), tl.load(heights + 1), tl.load(heights + 2)
    tangent = (first_height + row * height_step)[None, :]
    big_c, big_s = c + u * s, s - u * c
    is_along_y = tl.abs(big_c) >= tl.abs(big_s)
    dtype = data.dtype.element_ty
    total = tl.zeros((BINS, LEVELS), dtype)
    base = volumes + image.to(tl.int64) * height * width * slices
    for axis in tl.static_range(2):
        chosen = valid & (is_along_y if axis == 1 else is_along_y == 0)
        major = big_c if axis == 1 else big_s
        minor = big_s if axis == 1 else big_c
        steps = width if axis == 1 else height
        size = height if axis == 1 else width
        pixel = (width if axis == 1 else 1) * slices  # memory between neighbouring pixels across the dominant axis
        stride = (1 if axis == 1 else width) * slices
        start, slope, first, last = slopes(chosen, major, minor, q, steps, size)
        for step in range(first, last):
            position = start + step * slope
            below = tl.floor(position)
            fraction = (position - below).to(dtype)[:, None]
            k = below.to(tl.int32)[:, None]
            along, across = step - (steps - 1) / 2.0, position - (size - 1) / 2.0
            x = across if axis == 1 else along + 0.0 * across
            y = along + 0.0 * across if axis == 1 else across
            depth = distance - (x * s - y * c)  # U of the point
            z = tangent * depth[:, None] + (slices - 1) / 2.0
            lower = tl.floor(z)
            share = (z - lower).to(dtype)
            m = lower.to(tl.int32)
            for tap in tl.static_range(2):
                known = (k + tap >= 0) & (k + tap < size) & (row < rows)[None, :]
                pointer = base + (k + tap).to(tl.int64) * pixel + step * stride + m
                low = tl.load(pointer, mask=known & (m >= 0) & (m < slices), other=0.0)
                high = tl.load(pointer + 1, mask=known & (m >= -1) & (m < slices - 1), other=0.0)
                weight = fraction if tap == 1 else 1 - fraction
                total += weight * (low + share * (high - low))
    m_ray = tl.where(valid, tl.maximum(tl.abs(big_c), tl.abs(big_s)), 1.0)
    length = tl.sqrt((1 + u * u)[:, None] + tangent * tangent) / m_ray[:, None] * tl.load(numbers + 4)
    offset = ((image * views + view).to(tl.int64) * bins + b)[:, None] * rows + row[None, :]
    tl.store(data + offset, total * length.to(dtype), mask=valid[:, None] & (row < rows)[None, :])


@jit
def back_project_cone(
    data,
    volumes,
    cosine,
    sine,
    reach,
    numbers,
    heights,
    height,
    width,
    slices,
    views,
    bins,
    rows,
    TAPS: tl.constexpr,  # bins in which a pixel may have a weight
    ROW_TAPS: tl.constexpr,  # rows in which a slice may have a weight
    ROW_REACH: tl.constexpr,  # upper bound of the distance of such a row
    INTERPOLATE: tl.constexpr,  # the last step of FDK instead of the transpose
    PIXELS: tl.constexpr,
    SLICES: tl.constexpr,
):
    """A tile of voxels: neighbouring pixels of one row of the image, and slices."""
    tiles = tl.cdiv(slices, SLICES)
    image = tl.program_id(2) // tiles
    level = (tl.program_id(2) % tiles) * SLICES + tl.arange(0, SLICES)
    i = tl.program_id(1)
    j = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    first_height, height_step, distance = tl.load(heights), tl.load(heights + 1), tl.load(heights + 2)
    x = i - (height - 1) / 2.0 + 0.0 * distance
    y = j - (width - 1) / 2.0 + 0.0 * distance
    z = (level - (slices - 1) / 2.0 + 0.0 * distance)[None, :]
    u_first, u_step = tl.load(numbers), tl.load(numbers + 1)
    q_first, q_step = tl.load(numbers + 2), tl.load(numbers + 3)
    dtype = volumes.dtype.element_ty
    total = tl.zeros((PIXELS, SLICES), dtype)
    base = data + image.to(tl.int64) * views * bins * rows
    for view in range(views):
        c, s = tl.load(cosine + view), tl.load(sine + view)
        t = x * s - y * c
        d = q_step - u_step * t
        b = (x * c + y * s + u_first * t - q_first) / d
        far = 1.0 if INTERPOLATE else tl.load(reach + view)
        low = tl.floor(b + (1 - far))
        for tap in tl.static_range(TAPS):
            k = low.to(tl.int32) + tap
            if INTERPOLATE:
                ratio = q_step / d
                in_plane = (1 - tl.abs(b - low - tap)) * ratio * ratio
                depth = distance - t
            else:
                u, q = u_first + k * u_step, q_first + k * q_step
                big_c, big_s = c + u * s, s - u * c
                m = tl.maximum(tl.abs(big_c), tl.abs(big_s))
                in_plane = tl.maximum(m - tl.abs(b - low - tap) * d, 0.0) / (m * m)
                along_y = tl.abs(big_c) >= tl.abs(big_s)
                # Where the ray crosses the row or column of the pixel, along its dominant axis.
                x_ray = tl.where(along_y, (q - y * big_s) / tl.where(along_y, big_c, 1.0), x)
                y_ray = tl.where(along_y, y, (q - x * big_c) / tl.where(along_y, 1.0, big_s))
                depth = distance - (x_ray * s - y_ray * c)
            row_position = (z / depth[:, None] - first_height) / height_step
            row_low = tl.floor(row_position + (1 - (1.0 if INTERPOLATE else ROW_REACH)))
            for row_tap in tl.static_range(2 if INTERPOLATE else ROW_TAPS):
                row = row_low.to(tl.int32) + row_tap
                tangent = first_height + row * height_step
                if INTERPOLATE:
                    weight = in_plane[:, None] * (1 - tl.abs(row_position - row))
                else:
                    across = tl.maximum(1 - tl.abs(z - tangent * depth[:, None]), 0.0)
                    length = tl.sqrt((1 + u * u)[:, None] + tangent * tangent) * tl.load(numbers + 4)
                    weight = in_plane[:, None] * across * length
                known = ((k >= 0) & (k < bins))[:, None] & (row >= 0) & (row < rows)
                pointer = base + (view * bins + k).to(tl.int64)[:, None] * rows + row
                total += weight.to(dtype) * tl.load(pointer, mask=known, other=0.0)
    offset = ((image * height + i).to(tl.int64) * width + j)[:, None] * slices + level[None, :]
    tl.store(volumes + offset, total, mask=(j < width)[:, None] & (level < slices)[None, :])
