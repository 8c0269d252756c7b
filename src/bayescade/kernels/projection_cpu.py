"""Matrix-free projection of one image on a CPU, compiled by numba.

Every function computes some views, or some rows of pixels; threads share the work (`_cpu`). `_lines` has the formulas
and explains `numbers`. Positions are computed in float64, sums in the type of the images. Loops over bins and over
pixels are written so that the compiler makes vector instructions of them: no branches, and output arrays that are
local."""

import numpy as np

from bayescade.kernels._numba import compiled as numba_compiled

ROUNDING = 1e-12  # as in `_lines`
# Without NaN the compiler may use the processor's minimum and maximum.
compiled = numba_compiled(fastmath={"contract", "reassoc", "nsz", "nnan"})


@compiled
def find_slopes(along_y, cosine, sine, numbers, steps, size, start, slope, weight):
    """Fills in three numbers for every ray with this dominant axis, and gives the range of bins that holds these rays.

    start is the pixel, a fraction, that the ray meets in the first step along the dominant axis; slope is its change
    from step to step; weight is the length of the ray in a step. Rays with the other dominant axis get the weight 0
    and stay outside the image."""
    low, high = len(start), 0
    for b in range(len(start)):
        u, q = numbers[0] + b * numbers[1], numbers[2] + b * numbers[3]
        c, s = cosine + u * sine, sine - u * cosine
        major, minor = (c, s) if along_y else (s, c)
        if (abs(c) >= abs(s)) == along_y:
            slope[b] = -minor / major
            start[b] = q / major + (size - 1) / 2 - slope[b] * ((steps - 1) / 2)
            weight[b] = np.sqrt(1 + u * u) / abs(major) * numbers[4]
            low, high = min(low, b), b + 1
        else:
            slope[b], start[b], weight[b] = 0.0, -1.0, 0.0
    return low, high


@compiled
def bins_of_step(along_y, step, cosine, sine, numbers, steps, size, low, high):
    """The range of bins within low .. high - 1 whose rays meet the image in this step; it may hold more bins.

    It is found from b* of the two ends of the row or column.
    """
    first, last = float(high), -1.0
    major = step - (steps - 1) / 2
    for minor in (-(size + 1) / 2, (size + 1) / 2):
        x, y = (minor, major) if along_y else (major, minor)
        t = x * sine - y * cosine
        d = numbers[3] - numbers[1] * t
        if d <= 0:  # outside the image, and behind the source
            return low, high
        b = (x * cosine + y * sine + numbers[0] * t - numbers[2]) / d
        first, last = min(first, b), max(last, b)
    begin = min(max(np.floor(first), low), high)
    return int(begin), int(min(max(np.ceil(last) + 1, begin), high))


@compiled
def project(rows, columns, cosine, sine, numbers, first, last, sinogram):
    """Fills in views first .. last - 1 of the sinogram (views, bins).

    rows (height, 1 + width + 2) is the image with a zero before and two zeros after each row; columns is the same for
    the transposed image."""
    bins = sinogram.shape[1]
    start, slope, weight = np.empty(bins), np.empty(bins), np.empty(bins)
    sums = np.empty(bins, sinogram.dtype)
    line = np.empty(max(rows.shape[1], columns.shape[1]), sinogram.dtype)
    for view in range(first, last):
        for axis in range(2):
            along_y = axis == 1
            lines = columns if along_y else rows
            steps, size = lines.shape[0], lines.shape[1] - 3
            c, s = cosine[view], sine[view]
            low, high = find_slopes(along_y, c, s, numbers, steps, size, start, slope, weight)
            for b in range(low, high):
                sums[b] = 0
            for step in range(steps if low < high else 0):
                begin, end = bins_of_step(along_y, step, c, s, numbers, steps, size, low, high)
                for pixel in range(size + 3):
                    line[pixel] = lines[step, pixel]
                for b in range(begin, end):
                    position = min(max(start[b] + step * slope[b] + 1.0, 0.0), size + 1.0)
                    k = np.int32(position)
                    fraction = sinogram.dtype.type(position - k)
                    sums[b] += line[k] + fraction * (line[k + 1] - line[k])
            for b in range(low, high):
                if weight[b] > 0:
                    sinogram[view, b] = sums[b] * weight[b]


@compiled
def project_derivatives(rows, columns, cosine, sine, numbers, first, last, by_angle, by_offset):
    """Fills in the derivatives of views first .. last - 1 of the sinogram with respect to the view's angle and to the
    offset.

    Where the coordinate along the dominant axis is M, the ray has the coordinate z on the other axis. By the angle, z
    changes by +-(M + slope z) and the length of the ray in a step by the factor 1 +- slope, with minus if y is the
    dominant axis."""
    bins = by_angle.shape[1]
    start, slope, weight = np.empty(bins), np.empty(bins), np.empty(bins)
    for view in range(first, last):
        for axis in range(2):
            along_y = axis == 1
            lines = columns if along_y else rows
            steps, size = lines.shape[0], lines.shape[1] - 3
            c, s = cosine[view], sine[view]
            low, high = find_slopes(along_y, c, s, numbers, steps, size, start, slope, weight)
            sign = -1.0 if along_y else 1.0
            along, across = (c * numbers[5], s * numbers[5]) if along_y else (-s * numbers[5], -c * numbers[5])
            for b in range(low, high):
                if weight[b] == 0:
                    continue
                u = numbers[0] + b * numbers[1]
                major = c + u * s if along_y else s - u * c
                longer = u * numbers[5] / (1 + u * u) - across / major  # relative change of the length, by the offset
                total, turned, moved = 0.0, 0.0, 0.0
                for step in range(steps):
                    position = start[b] + step * slope[b]
                    if position <= -1 or position >= size:
                        continue
                    k = int(position + 1)
                    below, above = lines[step, k], lines[step, k + 1]
                    m, z = step - (steps - 1) / 2, position - (size - 1) / 2
                    total += below + (position + 1 - k) * (above - below)
                    turned += (above - below) * (m + slope[b] * z)
                    moved += (above - below) * (numbers[6] + m * along - z * across)
                by_angle[view, b] = weight[b] * sign * (turned + slope[b] * total)
                by_offset[view, b] = weight[b] * (moved / major + longer * total)


@compiled
def find_bins(x, cosine, sine, numbers, reach, pad, last, index, distance, spacing):
    """Fills in three numbers for every pixel of the row at x: the padded index of the first bin above b* - reach, at most
    `last`; b* minus this index; and D."""
    width = len(index)
    shift = pad + 1 - reach
    for j in range(width):
        y = j - (width - 1) / 2
        t = x * sine - y * cosine
        d = numbers[3] - numbers[1] * t
        b = (x * cosine + y * sine + numbers[0] * t - numbers[2]) / d
        low = min(max(np.floor(b + shift), 0.0), last)
        index[j], distance[j], spacing[j] = np.int32(low), b + pad - low, d


@compiled
def find_parallel_bins(x, cosine, sine, numbers, reach, pad, last, index, distance):
    """The same for a parallel beam: b* is linear along the row, and D is a constant."""
    width = len(index)
    step = sine / numbers[3]
    begin = (x * cosine - numbers[2]) / numbers[3] - (width - 1) / 2 * step
    shift = pad + 1 - reach
    for j in range(width):
        b = begin + j * step
        low = min(max(np.floor(b + shift), 0.0), last)
        index[j] = np.int32(low)
        distance[j] = b + pad - low


@compiled
def back_project(sinogram, pad, cosine, sine, numbers, reach, first, last, image):
    """Fills in rows first .. last - 1 of the image (height, width): the transpose of `project`.

    sinogram (views, pad + bins + pad) is multiplied by sqrt(1 + u^2) p / m^2, and zero in the padding.
    """
    height, width = image.shape
    number = image.dtype.type
    index, distance = np.empty(width, np.int32), np.empty(width, image.dtype)
    spacing, sums = np.empty(width, image.dtype), np.empty(width, image.dtype)
    line = np.empty(sinogram.shape[1], image.dtype)
    for row in range(first, last):
        sums[:] = 0
        for view in range(len(cosine)):
            c, s = cosine[view], sine[view]
            taps = int(np.ceil(2 * reach[view] - ROUNDING))
            x, end = row - (height - 1) / 2, float(len(line) - taps)
            for k in range(len(line)):
                line[k] = sinogram[view, k]
            if numbers[1] == 0:
                find_parallel_bins(x, c, s, numbers, reach[view], pad, end, index, distance)
                m, d = number(max(abs(c), abs(s))), number(numbers[3])
                if taps == 2:  # bins as wide as pixels: one loop is faster than two
                    for j in range(width):
                        k = index[j]
                        one = max(number(0), m - abs(distance[j]) * d) * line[k]
                        other = max(number(0), m - abs(distance[j] - number(1)) * d) * line[k + 1]
                        sums[j] += one + other
                    continue
                for tap in range(taps):
                    for j in range(width):
                        weight = max(number(0), m - abs(distance[j] - number(tap)) * d)
                        sums[j] += weight * line[index[j] + tap]
                continue
            find_bins(x, c, s, numbers, reach[view], pad, end, index, distance, spacing)
            c_first, c_step = number(c + numbers[0] * s), number(numbers[1] * s)
            s_first, s_step = number(s - numbers[0] * c), number(-numbers[1] * c)
            for tap in range(taps):
                for j in range(width):
                    k = index[j] + tap
                    b = number(k - pad)
                    m = max(abs(c_first + b * c_step), abs(s_first + b * s_step))
                    weight = max(number(0), m - abs(distance[j] - number(tap)) * spacing[j])
                    sums[j] += weight * line[k]
        for j in range(width):
            image[row, j] = sums[j]


@compiled
def interpolate_back(sinogram, pad, cosine, sine, numbers, first, last, image):
    """Fills in rows first .. last - 1 of the image: the sum over views of (dq / D)^2 times the sinogram interpolated
    at b*."""
    height, width = image.shape
    number = image.dtype.type
    index, distance = np.empty(width, np.int32), np.empty(width, image.dtype)
    spacing, sums = np.empty(width, image.dtype), np.empty(width, image.dtype)
    line = np.empty(sinogram.shape[1], image.dtype)
    for row in range(first, last):
        sums[:] = 0
        for view in range(len(cosine)):
            x, end = row - (height - 1) / 2, float(len(line) - 2)
            find_bins(x, cosine[view], sine[view], numbers, 1.0, pad, end, index, distance, spacing)
            for k in range(len(line)):
                line[k] = sinogram[view, k]
            for j in range(width):
                k, ratio = index[j], number(numbers[3]) / spacing[j]
                sums[j] += ratio * ratio * (line[k] + distance[j] * (line[k + 1] - line[k]))
        for j in range(width):
            image[row, j] = sums[j]


@compiled
def transpose_interpolation(image, cosine, sine, numbers, first, last, sinogram):
    """Fills in views first .. last - 1 of the sinogram: the transpose of `interpolate_back`."""
    height, width = image.shape
    bins = sinogram.shape[1]
    for view in range(first, last):
        c, s = cosine[view], sine[view]
        sinogram[view] = 0
        for row in range(height):
            x = row - (height - 1) / 2
            for j in range(width):
                y = j - (width - 1) / 2
                t = x * s - y * c
                d = numbers[3] - numbers[1] * t
                b = (x * c + y * s + numbers[0] * t - numbers[2]) / d
                low = np.floor(b)
                value = (numbers[3] / d) ** 2 * image[row, j]
                k = int(low)
                if 0 <= k < bins:
                    sinogram[view, k] += (1 - (b - low)) * value
                if 0 <= k + 1 < bins:
                    sinogram[view, k + 1] += (b - low) * value
