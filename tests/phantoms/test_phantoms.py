from pathlib import Path

import numpy as np
import pytest
import torch

from bayescade import phantoms, plugins
from bayescade.phantoms import ellipses, random_shepp_logan, shepp_logan, text
from bayescade.phantoms._raster import raster


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


@pytest.mark.parametrize("phantom", [ellipses, random_shepp_logan])
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
def test_images_on_the_gpu_are_those_of_the_cpu() -> None:
    cpu, gpu = ellipses.generate(50, seed=2), ellipses.generate(50, seed=2, device="cuda").cpu()
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
