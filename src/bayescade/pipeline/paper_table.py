"""Table 1 of Barbano et al., "Quantifying Sources of Uncertainty in Deep Learning-Based Image Reconstruction" (2020).

PSNR in dB: the mean over 100 ellipse images, and that of the Shepp-Logan phantom.
"""

from bayescade.physics.cases import PAPER_CASES

Cell = tuple[float, float]

_ROWS = {
    "fbp": "16.08/10.09 20.30/14.08 24.86/18.96 29.11/23.75 31.85/25.82 13.75/14.23 17.28/17.11 22.87/20.19",
    "tv": "28.33/17.90 32.11/35.51 34.93/35.63 35.80/36.19 36.54/36.47 28.00/26.87 31.15/29.31 34.21/33.59",
    "unet": "28.22/19.20 33.44/25.37 39.10/31.57 44.47/41.87 48.18/46.47 13.73/14.22 37.78/28.21 42.80/35.47",
    "lpd": "30.71/23.21 38.97/37.90 44.73/43.09 47.94/48.37 49.42/47.15 35.96/30.57 39.75/30.94 45.37/41.26",
    "dgd": "31.64/24.17 38.40/39.97 43.40/45.63 47.27/49.03 50.45/51.35 35.56/35.83 39.88/42.12 45.25/47.52",
    "bdgd": "30.04/21.35 37.08/37.32 42.30/41.88 48.06/50.64 51.85/54.39 32.18/29.67 37.49/36.81 45.91/49.55",
    "bdgd-plus": "31.33/23.82 38.92/37.39 45.01/45.08 48.86/51.65 53.00/56.89 33.73/32.81 40.60/44.45 48.78/52.23",
}


def published() -> dict[str, dict[str, Cell]]:
    """The published numbers: method -> case -> (ellipses, Shepp-Logan)."""
    table: dict[str, dict[str, Cell]] = {}
    for method, text in _ROWS.items():
        pairs = [cell.split("/") for cell in text.split()]
        table[method] = {case: (float(a), float(b)) for case, (a, b) in zip(PAPER_CASES, pairs, strict=True)}
    return table
