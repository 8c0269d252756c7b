"""Entries of the matrix of Joseph's line integrals, and of its transpose, compiled by numba.

The sum goes along the dominant axis of the ray, one line of pixels across this axis at a time: a column of the image
if y is dominant (axis 0 is x, axis 1 is y), else a row. In each line the image is interpolated linearly between the
two pixels beside the ray. The line has as weight the length p / |d| of the ray inside it, p being the pixel size and
d the direction's component along the dominant axis (Joseph 1982). Everything is computed in float64 and rounded once.
There is no fastmath: operations stay in the written order."""

import numpy as np

from bayescade.kernels._numba import compiled as numba_compiled

compiled = numba_compiled()


@compiled
def crossings(point, direction, pixel_size, height, width, below, fraction):
    """Fills in two numbers for every step of a ray along its dominant axis; gives whether y is dominant, the number
    of steps and the length of the ray in a step.

    `below` is the index, along the other axis, of the pixel at or before the ray; at -1 only the pixel after it is in
    the image, at -2 or at the size of the image neither is. `fraction` is the distance of the ray from it, in pixels.
    """
    along_y = abs(direction[1]) >= abs(direction[0])
    steps, size = (width, height) if along_y else (height, width)
    major, minor = (1, 0) if along_y else (0, 1)
    slope = direction[minor] / direction[major]
    for step in range(steps):
        position = (step - (steps - 1) / 2) * pixel_size
        crossing = (point[minor] + (position - point[major]) * slope) / pixel_size + (size - 1) / 2
        whole = np.floor(crossing)
        fraction[step] = crossing - whole
        below[step] = np.int32(min(max(whole, -2.0), size))
    return along_y, steps, pixel_size / abs(direction[major])


@compiled
def count_entries(points, directions, pixel_size, height, width, first, last, counts):
    """Fills in, for each of the rays first .. last - 1, its number of entries: pixels with a positive weight."""
    longest = max(height, width)
    below, fraction = np.empty(longest, np.int32), np.empty(longest)
    for ray in range(first, last):
        along_y, steps, length = crossings(points[ray], directions[ray], pixel_size, height, width, below, fraction)
        size = height if along_y else width
        count = 0
        for step in range(steps):
            k, f = below[step], fraction[step]
            count += int(0 <= k < size and (1 - f) * length > 0) + int(-1 <= k < size - 1 and f * length > 0)
        counts[ray] = count


@compiled
def fill_entries(points, directions, pixel_size, height, width, first, last, starts, pixels, weights):
    """Fills in pixels and weights of the rays first .. last - 1, in increasing order of the pixels of a ray."""
    longest = max(height, width)
    below, fraction = np.empty(longest, np.int32), np.empty(longest)
    cursor = np.empty(longest + 1, np.int64)
    for ray in range(first, last):
        along_y, steps, length = crossings(points[ray], directions[ray], pixel_size, height, width, below, fraction)
        size = height if along_y else width
        if along_y:  # entries are ordered by the row of the image that they are in: count those of each row
            cursor[: size + 1] = 0
            for step in range(steps):
                k, f = below[step], fraction[step]
                if 0 <= k < size and (1 - f) * length > 0:
                    cursor[k + 1] += 1
                if -1 <= k < size - 1 and f * length > 0:
                    cursor[k + 2] += 1
            cursor[0] = starts[ray]
            for row in range(size):
                cursor[row + 1] += cursor[row]
        offset = starts[ray]
        for step in range(steps):
            k, f = below[step], fraction[step]
            for shift in range(2):
                minor = k + shift
                weight = (f if shift else 1 - f) * length
                if 0 <= minor < size and weight > 0:
                    if along_y:
                        offset = cursor[minor]
                        cursor[minor] += 1
                        pixels[offset] = minor * width + step
                    else:
                        pixels[offset] = step * width + minor
                    weights[offset] = weight
                    offset += 1


@compiled
def count_pixel_entries(pixels, first, last, counts):
    """Fills in, for each of the pixels first .. last - 1, its number of entries; counts are zero before."""
    for pixel in pixels:
        if first <= pixel < last:
            counts[pixel] += 1


@compiled
def transpose(starts, pixels, weights, first, last, cursor, rays, values):
    """Fills in the rays that meet the pixels first .. last - 1, in increasing order for each pixel. cursor is where
    the entries of each pixel begin; it is changed."""
    for ray in range(len(starts) - 1):
        for entry in range(starts[ray], starts[ray + 1]):
            pixel = pixels[entry]
            if first <= pixel < last:
                offset = cursor[pixel]
                cursor[pixel] += 1
                rays[offset] = ray
                values[offset] = weights[entry]
