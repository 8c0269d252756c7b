from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import label
from torch.nn.functional import avg_pool2d, max_pool2d

from bayescade import phantoms, plugins
from bayescade.phantoms import (
    bars,
    discs_with_holes,
    ellipses,
    inserts,
    lines,
    polygons,
    random_shepp_logan,
    shepp_logan,
    text,
    textured,
)
from bayescade.phantoms._raster import AXIS_0, CENTRE_0, CENTRE_1, ROTATION, VALUE, Grid, grid_axis, raster
from bayescade.phantoms._shapes import PIXEL, RECTANGLE, SLOT, TRIANGLE, circle_radius, polygon_cuts, table_of
from bayescade.testing import check_phantom

SHAPES = [bars, discs_with_holes, inserts, lines, polygons, textured]
RANDOM = [ellipses, random_shepp_logan, *SHAPES]
IN_CIRCLE = [bars, discs_with_holes, inserts, textured]


def used(tables: np.ndarray) -> np.ndarray:
    return tables[..., AXIS_0] > 0


def test_the_papers_test_images(data_folder: Path) -> None:
    expected = np.load(data_folder / "paper_test_set.npz")
    assert abs(ellipses.paper_test()[:, 0].numpy() - expected["ellipses"]).max() <= 2e-7
    assert abs(shepp_logan.generate()[0, 0].numpy() - expected["shepp_logan"]).max() <= 2e-7


def test_the_papers_training_images_are_others() -> None:
    tables = ellipses.paper_tables()
    assert tables.shape == (4100, 9, 6)
    train, test = ({table.tobytes() for table in part} for part in (tables[:4000], tables[4000:]))
    assert (len(train), len(test), len(train & test)) == (4000, 100, 0)


@pytest.mark.parametrize("name", plugins.names(phantoms))
@pytest.mark.parametrize("shape", [(32, 32), (21, 40)])
def test_every_phantom_has_its_shape_and_range(name: str, shape: tuple[int, int]) -> None:
    images = plugins.load(phantoms, name).generate(3, shape, seed=5)
    assert images.shape == (3, 1, *shape)
    assert images.dtype == torch.float32
    assert float(images.min()) == 0
    assert float(images.max()) == 1


@pytest.mark.parametrize("name", plugins.our_names(phantoms))
def test_every_phantom_passes_the_check_that_ships(name: str) -> None:
    check_phantom(plugins.load(phantoms, name))


@pytest.mark.parametrize("phantom", RANDOM)
def test_an_image_depends_on_its_seed_and_index_only(phantom) -> None:
    all_at_once = phantom.generate(7, (16, 16), seed=3)
    torch.testing.assert_close(phantom.generate(2, (16, 16), seed=3, first=4), all_at_once[4:6], rtol=0, atol=0)
    assert not torch.equal(phantom.generate(7, (16, 16), seed=4), all_at_once)
    assert len({image.numpy().tobytes() for image in phantom.generate(50, (32, 32), seed=0)}) == 50


def test_our_ellipses_have_the_papers_distribution() -> None:
    """The same parameters from another stream: means of every column within five standard errors of the paper's 4100."""
    ours, theirs = ellipses.random_tables(4000, seed=1), ellipses.paper_tables()
    assert set(np.unique((ours[..., 0] > 0).sum(1))) == {5, 6, 7, 8, 9}
    for column in range(6):
        a, b = (table[..., column][table[..., 0] > 0] for table in (ours, theirs))
        error = np.hypot(a.std() / np.sqrt(len(a)), b.std() / np.sqrt(len(b)))
        assert abs(a.mean() - b.mean()) < 5 * error
        assert np.quantile(a, 0.9) == pytest.approx(np.quantile(b, 0.9), rel=0.08, abs=0.02)


def test_the_mean_over_a_pixel_is_the_area_that_is_covered() -> None:
    table = np.array([[[1.0, 0.5, 0.25, 0.1, 0.0, 0.3]]])
    size = 65
    fine = raster(table, (size, size), supersample=16)
    pixel = 2 / (size - 1)
    area = float(fine.mean()) * (size * pixel) ** 2
    assert area == pytest.approx(np.pi * 0.5 * 0.25, rel=1e-3)


@pytest.mark.parametrize(
    ("cuts", "area"), [(RECTANGLE, 2), (TRIANGLE, 3 * np.sqrt(3) / 4), (SLOT, 2 * (np.arcsin(0.6) + 0.6 * 0.8))]
)
def test_cuts_leave_the_area_of_the_shape(cuts, area: float) -> None:
    """Areas are those of the unit circle with these cuts."""
    table = table_of(np.ones((1, 1)), np.array([[[0.6, 0.3]]]), np.array([[[0.1, -0.2]]]), np.full((1, 1), 0.4), cuts)
    fine = raster(table, (65, 65), supersample=16)
    assert float(fine.mean()) * (65 * 2 / 64) ** 2 == pytest.approx(area * 0.6 * 0.3, rel=2e-3)


def test_a_polygon_has_the_area_between_its_corners() -> None:
    u = np.random.default_rng(0).random((6, 1, 8))
    corners = np.arange(3, 9)[:, None]
    half_axes = np.full((6, 1, 2), 0.7)
    table = table_of(np.ones((6, 1)), half_axes, np.zeros((6, 1, 2)), np.zeros((6, 1)), polygon_cuts(corners, u))
    areas = raster(table, (65, 65), supersample=8).mean((-3, -2, -1)) * (65 * 2 / 64) ** 2
    for n, numbers, area in zip(corners[:, 0], u[:, 0], areas, strict=True):
        angle = 2 * np.pi * (np.arange(n) - 0.3 + 0.6 * numbers[:n]) / n
        expected = 0.7**2 / 2 * np.sin(np.diff(angle, append=angle[0] + 2 * np.pi)).sum()
        assert float(area) == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("phantom", SHAPES)
def test_no_image_is_constant(phantom) -> None:
    images = phantom.generate(400, (32, 32), seed=6).flatten(1)
    assert bool((images.amax(1) > images.amin(1) + 0.1).all())
    assert bool(((images > 0).float().mean(1) > 0.02).all()), "an object is more than a few pixels"


@pytest.mark.parametrize("phantom", SHAPES)
def test_supersampled_points_approximate_the_mean_over_a_pixel(phantom) -> None:
    coarse, two, eight = (avg_pool2d(phantom.generate(4, (40, 48), seed=8, supersample=f), f) for f in (1, 2, 8))
    assert float((two - eight).abs().mean()) < 0.01
    assert float((two - eight).square().mean()) < 0.5 * float((coarse - eight).square().mean())


@pytest.mark.parametrize("phantom", IN_CIRCLE)
def test_bodies_and_discs_lie_inside_the_circle(phantom) -> None:
    images = phantom.generate(100, (64, 64), seed=1)
    x = torch.linspace(-1, 1, 64)
    assert float(images[..., x[:, None] ** 2 + x**2 > 0.951**2].max()) == 0


@pytest.mark.parametrize("phantom", [lines, polygons])
def test_half_of_the_images_lie_inside_the_circle(phantom) -> None:
    images, radius = phantom.generate(100, (64, 64), seed=1), phantom.random_parameters(100, seed=1)[-1]
    x = torch.linspace(-1, 1, 64)
    outside = images[..., x[:, None] ** 2 + x**2 > 0.98**2].flatten(1).amax(1)
    assert float(outside[radius == 0.98].max()) == 0
    assert float(outside[np.isinf(radius)].max()) > 0
    assert 30 < (radius == 0.98).sum() < 70
    assert set(circle_radius(np.array([0.0, 0.49, 0.5, 1.0]))) == {0.98, np.inf}


def test_polygons_are_cut_out_of_polygons() -> None:
    tables, radius = polygons.random_parameters(150, seed=2)
    assert set(used(tables).sum(1)) == set(range(3, 10))
    negative = used(tables) & (tables[..., VALUE] < 0)
    assert 0.1 < negative.sum() / used(tables).sum() < 0.5
    grid = Grid(grid_axis(64, 64), grid_axis(64, 64), torch.device("cpu"))
    whole = tables.copy()
    whole[..., VALUE] = abs(whole[..., VALUE])
    removed = (polygons.paint(grid, tables, radius) == 0) & (polygons.paint(grid, whole, radius) > 0)
    assert float(removed.flatten(1).any(1).float().mean()) > 0.5


def test_a_texture_is_the_sum_of_its_waves() -> None:
    _, amplitude, waves = textured.random_parameters(200, seed=3)
    assert 0 <= amplitude.min() < 0.02
    assert 0.48 < amplitude.max() <= 0.5
    wavelength = 2 * np.pi / np.hypot(waves[..., 0], waves[..., 1]) / PIXEL
    assert 4 <= wavelength.min() < 5
    assert 50 < wavelength.max() <= 64
    grid = Grid(grid_axis(32, 32), grid_axis(20, 32), torch.device("cpu"))
    textures = textured.textures(grid, waves).numpy()
    assert np.sqrt((textures**2).mean()) == pytest.approx(0.5, rel=0.05)
    k, m, phase, height = waves[7, 1].T
    angle = k * grid.x[:, None, None] + m * grid.y[:, None] + phase
    np.testing.assert_allclose(textures[7, 1], (height * np.cos(angle)).sum(-1), atol=1e-12)


def test_only_texture_varies_inside_an_ellipse() -> None:
    tables, amplitude, waves = textured.random_parameters(5, seed=4)
    grid = Grid(grid_axis(64, 64), grid_axis(64, 64), torch.device("cpu"))
    smooth, rough = (textured.paint(grid, tables, factor * amplitude, waves) for factor in (0, 1))
    assert max(len(image.unique()) for image in smooth) < 60
    assert min(len(image.unique()) for image in rough) > 500
    assert float((rough - smooth).abs().mean()) < 0.2


def test_lines_are_thin() -> None:
    """What differs from the background is narrow: few points of it have only such points around them."""
    background, strokes, dots, radius = lines.random_parameters(15, seed=5)
    width = np.sqrt(2) * strokes[used(strokes)][:, AXIS_0 + 1] / PIXEL
    assert 0.3 <= width.min() < 0.4
    assert 2.5 < width.max() <= 3
    assert set(used(strokes).sum(1)) <= set(range(3, 16))
    grid = Grid(grid_axis(128, 128, 2), grid_axis(128, 128, 2), torch.device("cpu"))
    images = lines.paint(grid, background, strokes, dots, radius)
    changed = (images != lines.paint(grid, background, 0 * strokes, 0 * dots, radius)).float()
    wide = 1 - max_pool2d(1 - changed, 15, stride=1, padding=7)
    assert bool((changed.mean((1, 2)) > 5e-4).all()), "every image has lines"
    assert 0.01 < float(changed.mean()) < 0.15
    assert float(wide.sum()) < 0.01 * float(changed.sum())


def test_inserts_are_bright_and_holes_are_empty() -> None:
    bodies, holes, bright = inserts.random_parameters(200, seed=6)
    images = inserts.generate(200, (64, 64), seed=6)[:, 0]
    body = torch.stack([image[image > 0].median() for image in images])
    with_inserts = used(bright).any(1)
    assert 0.1 < float(body[with_inserts].min()) < float(body[with_inserts].max()) < 0.7
    assert float(body[~with_inserts].min()) > 0.6
    assert set(used(bright).sum(1)) == set(range(7))
    assert set(used(holes).sum(1)) == set(range(5))
    contrast = abs(bodies[:, 1:, VALUE])
    assert 0.01 <= contrast.min() < contrast.max() <= 0.2


def test_bars_alternate_with_their_period() -> None:
    """Along a group there are bars at its centre and a period away, and the value of the disc half a period away."""
    discs, groups, periods = bars.random_parameters(20, seed=7)
    images = bars.generate(20, (512, 512), seed=7)[:, 0].numpy()
    assert periods.min() >= 2 * PIXEL
    assert periods.max() <= 16 * PIXEL
    assert used(groups).sum(1).min() >= 2
    for image, group in np.argwhere(used(groups)):
        table, steps = groups[image, group], periods[image, group] * np.array([-1, -0.5, 0, 0.5, 1])
        x = table[CENTRE_0] + steps * np.cos(table[ROTATION])
        y = table[CENTRE_1] + steps * np.sin(table[ROTATION])
        profile = images[image][tuple(np.rint((point + 1) * 511 / 2).astype(int) for point in (x, y))]
        value = discs[image, 0, VALUE]
        ratio = (value + table[VALUE]) / value
        np.testing.assert_allclose(profile[::2] / profile[1], ratio, rtol=1e-5, atol=1e-6)
        assert profile[1] == profile[3] > 0
        assert abs(ratio - 1) > 0.1


def test_a_disc_has_its_holes() -> None:
    discs, holes = discs_with_holes.random_parameters(12, seed=8)
    images = discs_with_holes.generate(12, (512, 512), seed=8)[:, 0]
    assert set(images.unique().tolist()) == {0, 1}
    assert set(used(discs_with_holes.random_parameters(300, seed=8)[1]).sum(1)) == set(range(3, 16))
    for image, table, disc in zip(images.numpy(), holes, discs[:, 0], strict=True):
        _, regions = label(image == 0, np.ones((3, 3)))  # corners connect
        assert regions == 1 + used(table).sum(), "holes overlap neither each other nor the rim"
        area = image.mean() * (512 * 2 / 511) ** 2
        assert 0.5 < area / (np.pi * disc[AXIS_0] ** 2) < 0.99


def test_an_empty_phantom_is_zero() -> None:
    far = np.array([[[1.0, 0.1, 0.1, 5.0, 5.0, 0.0]]])
    assert torch.equal(ellipses.images_of(far, (8, 8)), torch.zeros(1, 1, 8, 8))


def test_random_variants_look_like_the_shepp_logan_phantom() -> None:
    variants = random_shepp_logan.generate(20, seed=0)
    phantom = shepp_logan.generate()
    correlation = [float(np.corrcoef(one.flatten(), phantom.flatten())[0, 1]) for one in variants.numpy()]
    assert 0.2 < np.mean(correlation) < 0.98
    assert all(float(one[0, 0, :].max()) == 0 for one in variants), "nothing reaches the border"


@pytest.mark.gpu
@pytest.mark.parametrize("phantom", RANDOM)
def test_images_on_the_gpu_are_those_of_the_cpu(phantom) -> None:
    cpu, gpu = phantom.generate(50, seed=2), phantom.generate(50, seed=2, device="cuda").cpu()
    assert (cpu != gpu).float().mean() < 1e-4, "only points on a boundary may differ"


def test_a_word_across_the_ellipses_and_their_clean_twin() -> None:
    images, clean = text.generate(2, seed=3, first=4), ellipses.generate(2, seed=3, first=4)
    mask = text.letters((128, 128))
    assert torch.equal(images[..., mask], torch.ones_like(images[..., mask]))
    assert torch.equal(images[..., ~mask], clean[..., ~mask])
    assert 0.01 < float(mask.float().mean()) < 0.05
    along, across = mask.any(1).nonzero(), mask.any(0).nonzero()
    assert len(along) > 3 * len(across)  # it is read along x
    assert abs(float(along[0] + along[-1]) - 127) <= 2
    assert abs(float(across[0] + across[-1]) - 127) <= 2


def test_a_word_is_the_same_on_other_grids() -> None:
    fine = text.letters((512, 512), supersample=2).float().mean()
    assert float(text.letters((512, 512)).float().mean()) == pytest.approx(float(fine), rel=0.02)
    narrow, wide = text.letters((128, 64)), text.letters((128, 128))
    assert torch.equal(narrow, wide[:, 32:96])


def test_letters_have_holes() -> None:
    """Of "Uncertain?" e and a have one each: pixels without ink from which no way leads out."""
    mask = text.letters((512, 512)).numpy()
    outside = np.zeros_like(mask)
    outside[0, 0] = True
    while True:
        grown = outside.copy()
        grown[1:] |= outside[:-1]
        grown[:-1] |= outside[1:]
        grown[:, 1:] |= outside[:, :-1]
        grown[:, :-1] |= outside[:, 1:]
        grown &= ~mask
        if (grown == outside).all():
            break
        outside = grown
    holes = ~mask & ~outside
    where = np.flatnonzero(holes.any(1))
    assert 1 + int((np.diff(where) > 1).sum()) == 2
