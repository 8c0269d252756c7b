"""Matrix-free projection in Triton: forward, back, and derivatives with respect to angles and offset.

Images are (scans, height, width, images) in memory and sinograms (scans, views, bins, images): the images of one scan
are neighbours, so that positions and weights are computed once for all of them. A program computes a tile of rays
(neighbouring views and bins) or of pixels; the tile's reads overlap and come from the cache. Every output is written
by one program: no atomics. Positions are computed in float64, sums in the type of the images. `projectors/_lines.py`
has the formulas and explains `numbers`."""

from __future__ import annotations

from bayescade.kernels._triton import jit, tl


@jit
def ray_of_tile(cosine, sine, numbers, counts, views, VIEWS: tl.constexpr, BINS: tl.constexpr, scan):
    """View, bin, whether the scan has them, C, S, Q and u of the rays of this program, (VIEWS * BINS,) each."""
    ray = tl.arange(0, VIEWS * BINS)
    view = tl.program_id(1) * VIEWS + ray // BINS
    b = tl.program_id(0) * BINS + ray % BINS
    valid = (view < tl.load(counts + 2 * scan)) & (b < tl.load(counts + 2 * scan + 1))
    c = tl.load(cosine + scan * views + view, mask=view < views, other=1.0)
    s = tl.load(sine + scan * views + view, mask=view < views, other=0.0)
    u = tl.load(numbers + 7 * scan) + b * tl.load(numbers + 7 * scan + 1)
    q = tl.load(numbers + 7 * scan + 2) + b * tl.load(numbers + 7 * scan + 3)
    return view, b, valid, c, s, u, q


@jit
def slopes(chosen, major, minor, q, steps, size):
    """Pixel (a fraction) of a ray in the first step along its dominant axis, its change from step to step, and the
    range of steps in which a ray of the tile meets the image."""
    major = tl.where(chosen, major, 1.0)
    slope = tl.where(chosen, -minor / major, 0.0)
    start = tl.where(chosen, q / major + (size - 1) / 2 - slope * ((steps - 1) / 2), -2.0)
    divisor = tl.where(slope == 0, 1e-30, slope)
    enter, leave = (-1 - start) / divisor, (size - start) / divisor
    low = tl.floor(tl.minimum(tl.maximum(tl.minimum(enter, leave), 0.0), steps))
    high = tl.ceil(tl.minimum(tl.maximum(tl.maximum(enter, leave) + 1, 0.0), steps))
    first = tl.min(tl.where(chosen, low, steps).to(tl.int32), 0)
    last = tl.max(tl.where(chosen, high, 0.0).to(tl.int32), 0)
    return start, slope, first, last


@jit
def project(
    rows,
    columns,
    sinograms,
    cosine,
    sine,
    numbers,
    counts,
    height,
    width,
    views,
    bins,
    images,
    column_step,  # of the columns in memory: from pixel to pixel in a column
    column_stride,  # and from column to column
    VIEWS: tl.constexpr,
    BINS: tl.constexpr,
    IMAGES: tl.constexpr,
    ALIGNED: tl.constexpr,  # a divisor of the number of images
):
    """Sinograms of a tile of rays and of images."""
    if ALIGNED > 1:  # a single image is a constant for the compiler
        images = tl.multiple_of(images, ALIGNED)
    tiles = tl.cdiv(images, IMAGES)
    scan = tl.program_id(2) // tiles
    n = (tl.program_id(2) % tiles) * IMAGES + tl.arange(0, IMAGES)
    view, b, valid, c, s, u, q = ray_of_tile(cosine, sine, numbers, counts, views, VIEWS, BINS, scan)
    big_c, big_s = c + u * s, s - u * c
    is_along_y = tl.abs(big_c) >= tl.abs(big_s)
    dtype = sinograms.dtype.element_ty
    total = tl.zeros((VIEWS * BINS, IMAGES), dtype)
    base = scan.to(tl.int64) * height * width * images
    for axis in tl.static_range(2):
        chosen = valid & (is_along_y if axis == 1 else is_along_y == 0)
        major = big_c if axis == 1 else big_s
        minor = big_s if axis == 1 else big_c
        steps = width if axis == 1 else height
        size = height if axis == 1 else width
        step_size = column_step if axis == 1 else images
        stride = column_stride if axis == 1 else width * images
        memory = (columns if axis == 1 else rows) + base
        start, slope, first, last = slopes(chosen, major, minor, q, steps, size)
        for step in range(first, last):
            position = start + step * slope
            below = tl.floor(position)
            fraction = (position - below).to(dtype)[:, None]
            k = below.to(tl.int32)[:, None]
            pointer = memory + (k * step_size + step * stride) + n[None, :]
            known = n[None, :] < images
            left = tl.load(pointer, mask=(k >= 0) & (k < size) & known, other=0.0)
            right = tl.load(pointer + step_size, mask=(k >= -1) & (k < size - 1) & known, other=0.0)
            total += left + fraction * (right - left)
    m = tl.maximum(tl.abs(big_c), tl.abs(big_s))
    weight = tl.sqrt(1 + u * u) / tl.where(valid, m, 1.0) * tl.load(numbers + 7 * scan + 4)
    offset = ((scan * views + view).to(tl.int64) * bins + b)[:, None] * images + n[None, :]
    inside = (view < views)[:, None] & (b < bins)[:, None] & (n[None, :] < images)
    total = tl.where(valid[:, None], total * weight.to(dtype)[:, None], 0.0)
    tl.store(sinograms + offset, total, mask=inside)


@jit
def project_derivatives(
    rows,
    columns,
    by_angle,
    by_offset,
    cosine,
    sine,
    numbers,
    counts,
    height,
    width,
    views,
    bins,
    images,
    column_step,
    column_stride,
    VIEWS: tl.constexpr,
    BINS: tl.constexpr,
    IMAGES: tl.constexpr,
    ALIGNED: tl.constexpr,  # a divisor of the number of images
):
    """Derivatives of sinograms with respect to the angle of the view and to the offset, of a tile of rays and of
    images.

    Where the coordinate along the dominant axis is M, the ray has the coordinate z on the other axis. By the angle, z
    changes by +-(M + slope z) and the length of the ray in a step by the factor 1 +- slope, with minus if y is the
    dominant axis."""
    if ALIGNED > 1:  # a single image is a constant for the compiler
        images = tl.multiple_of(images, ALIGNED)
    tiles = tl.cdiv(images, IMAGES)
    scan = tl.program_id(2) // tiles
    n = (tl.program_id(2) % tiles) * IMAGES + tl.arange(0, IMAGES)
    view, b, valid, c, s, u, q = ray_of_tile(cosine, sine, numbers, counts, views, VIEWS, BINS, scan)
    u_slope, q_slope = tl.load(numbers + 7 * scan + 5), tl.load(numbers + 7 * scan + 6)
    big_c, big_s = c + u * s, s - u * c
    is_along_y = tl.abs(big_c) >= tl.abs(big_s)
    dtype = by_angle.dtype.element_ty
    turned = tl.zeros((VIEWS * BINS, IMAGES), dtype)
    moved = tl.zeros((VIEWS * BINS, IMAGES), dtype)
    base = scan.to(tl.int64) * height * width * images
    for axis in tl.static_range(2):
        chosen = valid & (is_along_y if axis == 1 else is_along_y == 0)
        major = big_c if axis == 1 else big_s
        minor = big_s if axis == 1 else big_c
        steps = width if axis == 1 else height
        size = height if axis == 1 else width
        step_size = column_step if axis == 1 else images
        stride = column_stride if axis == 1 else width * images
        memory = (columns if axis == 1 else rows) + base
        sign = -1.0 if axis == 1 else 1.0
        along = (c if axis == 1 else -s) * u_slope
        across = (s if axis == 1 else -c) * u_slope
        start, slope, first, last = slopes(chosen, major, minor, q, steps, size)
        divisor = tl.where(chosen, major, 1.0)
        longer = u * u_slope / (1 + u * u) - across / divisor
        for step in range(first, last):
            position = start + step * slope
            below = tl.floor(position)
            k = below.to(tl.int32)[:, None]
            pointer = memory + (k * step_size + step * stride) + n[None, :]
            known = n[None, :] < images
            left = tl.load(pointer, mask=(k >= 0) & (k < size) & known, other=0.0)
            right = tl.load(pointer + step_size, mask=(k >= -1) & (k < size - 1) & known, other=0.0)
            value = left + (position - below).to(dtype)[:, None] * (right - left)
            coordinate, z = step - (steps - 1) / 2, position - (size - 1) / 2
            by_turn = sign * (coordinate + slope * z)
            by_move = (q_slope + coordinate * along - z * across) / divisor
            turned += (right - left) * by_turn.to(dtype)[:, None] + value * (sign * slope).to(dtype)[:, None]
            moved += (right - left) * by_move.to(dtype)[:, None] + value * longer.to(dtype)[:, None]
    m = tl.maximum(tl.abs(big_c), tl.abs(big_s))
    weight = tl.sqrt(1 + u * u) / tl.where(valid, m, 1.0) * tl.load(numbers + 7 * scan + 4)
    weight = tl.where(valid, weight, 0.0).to(dtype)[:, None]
    offset = ((scan * views + view).to(tl.int64) * bins + b)[:, None] * images + n[None, :]
    inside = (view < views)[:, None] & (b < bins)[:, None] & (n[None, :] < images)
    tl.store(by_angle + offset, turned * weight, mask=inside)
    tl.store(by_offset + offset, moved * weight, mask=inside)


@jit
def back_project(
    sinograms,
    images_out,
    cosine,
    sine,
    reach,
    numbers,
    counts,
    height,
    width,
    views,
    bins,
    images,
    TAPS: tl.constexpr,  # bins of a view in which a pixel may have a weight, or more
    UNROLLED: tl.constexpr,  # how many of them are compiled one by one; a divisor of TAPS
    PARALLEL: tl.constexpr,
    INTERPOLATE: tl.constexpr,  # weights of FBP instead of those of the transpose
    TILE_HEIGHT: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    IMAGES: tl.constexpr,
    ALIGNED: tl.constexpr,  # a divisor of the number of images
):
    """A tile of pixels of images: the transpose, of sinograms multiplied by sqrt(1 + u^2) p / m^2, or the sum over
    views of (dq / D)^2 times the sinograms interpolated linearly at b*."""
    if ALIGNED > 1:  # a single image is a constant for the compiler
        images = tl.multiple_of(images, ALIGNED)
    tiles = tl.cdiv(images, IMAGES)
    scan = tl.program_id(2) // tiles
    n = (tl.program_id(2) % tiles) * IMAGES + tl.arange(0, IMAGES)
    pixel = tl.arange(0, TILE_HEIGHT * TILE_WIDTH)
    i = tl.program_id(1) * TILE_HEIGHT + pixel // TILE_WIDTH
    j = tl.program_id(0) * TILE_WIDTH + pixel % TILE_WIDTH
    x, y = i - (height - 1) / 2.0, j - (width - 1) / 2.0
    dtype = images_out.dtype.element_ty
    u_first, u_step = tl.load(numbers + 7 * scan), tl.load(numbers + 7 * scan + 1)
    q_first, q_step = tl.load(numbers + 7 * scan + 2), tl.load(numbers + 7 * scan + 3)
    x, y = x + 0.0 * u_first, y + 0.0 * u_first  # float64
    own_views, own_bins = tl.load(counts + 2 * scan), tl.load(counts + 2 * scan + 1)
    total = tl.zeros((TILE_HEIGHT * TILE_WIDTH, IMAGES), dtype)
    base = sinograms + scan.to(tl.int64) * views * bins * images
    for view in range(own_views):
        c, s = tl.load(cosine + scan * views + view), tl.load(sine + scan * views + view)
        far = 1.0 if INTERPOLATE else tl.load(reach + scan * views + view)
        if PARALLEL:
            b = (x * c + y * s - q_first) * (1 / q_step)
            d = q_step
        else:
            t = x * s - y * c
            d = q_step - u_step * t
            b = (x * c + y * s + u_first * t - q_first) / d
        low = tl.floor(b + (1 - far))
        distance = (b - low).to(dtype)
        k = low.to(tl.int32)
        for group in range(0, TAPS, UNROLLED):
            for part in tl.static_range(UNROLLED):
                tap = group + part
                if INTERPOLATE:
                    ratio = (q_step / d).to(dtype)
                    weight = (1 - tl.abs(distance - tap)) * ratio * ratio
                else:
                    if PARALLEL:
                        m = tl.maximum(tl.abs(c), tl.abs(s)).to(dtype)
                    else:
                        u = u_first + (k + tap) * u_step
                        m = tl.maximum(tl.abs(c + u * s), tl.abs(s - u * c)).to(dtype)
                    weight = tl.maximum(m - tl.abs(distance - tap) * d.to(dtype), 0.0)
                inside = (k + tap >= 0) & (k + tap < own_bins)
                pointer = base + ((view * bins + k + tap) * images)[:, None] + n[None, :]
                value = tl.load(pointer, mask=inside[:, None] & (n[None, :] < images), other=0.0)
                total += weight[:, None] * value
    offset = ((scan * height + i).to(tl.int64) * width + j)[:, None] * images + n[None, :]
    tl.store(images_out + offset, total, mask=(i < height)[:, None] & (j < width)[:, None] & (n[None, :] < images))


@jit
def neighbour(u, q, c, s, major, is_c, steps, size):
    """Pixel (a fraction) of the ray with this u and Q in the first step along the dominant axis of the ray in the middle, its
    change from step to step, and whether both rays cross a row of pixels on the same side of the source."""
    big_c, big_s = c + u * s, s - u * c
    own = big_c if is_c else big_s
    across = big_s if is_c else big_c
    same = own * major >= 0.25 * major * major
    divisor = tl.where(same, own, 1.0)
    slope = -across / divisor
    return q / divisor + (size - 1) / 2 - slope * ((steps - 1) / 2), slope, same


@jit
def transpose_interpolation(
    rows,
    columns,
    sinograms,
    cosine,
    sine,
    numbers,
    counts,
    height,
    width,
    views,
    bins,
    images,
    column_step,
    column_stride,
    VIEWS: tl.constexpr,
    BINS: tl.constexpr,
    IMAGES: tl.constexpr,
    ALIGNED: tl.constexpr,  # a divisor of the number of images
):
    """The transpose of `back_project` with INTERPOLATE, for a tile of rays and of images.

    The pixels whose b* is closer to the bin than 1 are between the rays of the two neighbouring bins. If these are not on one
    side of the source, all pixels of the row are looked at."""
    if ALIGNED > 1:  # a single image is a constant for the compiler
        images = tl.multiple_of(images, ALIGNED)
    tiles = tl.cdiv(images, IMAGES)
    scan = tl.program_id(2) // tiles
    n = (tl.program_id(2) % tiles) * IMAGES + tl.arange(0, IMAGES)
    view, b, valid, c, s, u, q = ray_of_tile(cosine, sine, numbers, counts, views, VIEWS, BINS, scan)
    u_first, u_step = tl.load(numbers + 7 * scan), tl.load(numbers + 7 * scan + 1)
    q_first, q_step = tl.load(numbers + 7 * scan + 2), tl.load(numbers + 7 * scan + 3)
    big_c, big_s = c + u * s, s - u * c
    is_along_y = tl.abs(big_c) >= tl.abs(big_s)
    dtype = sinograms.dtype.element_ty
    total = tl.zeros((VIEWS * BINS, IMAGES), dtype)
    base = scan.to(tl.int64) * height * width * images
    for axis in tl.static_range(2):
        chosen = valid & (is_along_y if axis == 1 else is_along_y == 0)
        major = big_c if axis == 1 else big_s
        steps = width if axis == 1 else height
        size = height if axis == 1 else width
        step_size = column_step if axis == 1 else images
        stride = column_stride if axis == 1 else width * images
        memory = (columns if axis == 1 else rows) + base
        start_1, slope_1, same_1 = neighbour(u - u_step, q - q_step, c, s, major, axis == 1, steps, size)
        start_2, slope_2, same_2 = neighbour(u + u_step, q + q_step, c, s, major, axis == 1, steps, size)
        same = same_1 & same_2
        for step in range(0, steps * tl.max(chosen.to(tl.int32), 0)):
            one, two = start_1 + step * slope_1, start_2 + step * slope_2
            low = tl.where(same, tl.floor(tl.minimum(one, two)), 0.0)
            high = tl.where(same, tl.ceil(tl.maximum(one, two)), size)
            low = tl.minimum(tl.maximum(low, 0.0), size).to(tl.int32)
            high = tl.minimum(tl.maximum(high, -1.0), size - 1).to(tl.int32)
            z = step - (steps - 1) / 2.0
            for number in range(0, tl.max(tl.where(chosen, high - low + 1, 0), 0)):
                k = low + number
                across = k - (size - 1) / 2.0 + 0.0 * u_first  # float64
                x, y = (across, z) if axis == 1 else (z, across)
                t = x * s - y * c
                d = q_step - u_step * t
                distance = (x * c + y * s + u_first * t - q_first) / d - b
                ratio = q_step / d
                inside = chosen & (k <= high)
                weight = tl.where(inside, tl.maximum(1 - tl.abs(distance), 0.0) * ratio * ratio, 0.0).to(dtype)
                pointer = memory + (k[:, None] * step_size + step * stride) + n[None, :]
                value = tl.load(pointer, mask=inside[:, None] & (n[None, :] < images), other=0.0)
                total += weight[:, None] * value
    offset = ((scan * views + view).to(tl.int64) * bins + b)[:, None] * images + n[None, :]
    mask = (view < views)[:, None] & (b < bins)[:, None] & (n[None, :] < images)
    tl.store(sinograms + offset, total, mask=mask)
