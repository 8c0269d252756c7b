"""Presets: as many blocks and images as the scan asks for."""

import numpy as np

from bayescade.methods import bdgd_plus
from bayescade.methods._cascade_settings import Settings
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.geometry import Geometry, ParallelBeam, measured_arc

BLOCKS_AND_IMAGES = {
    "sparse-8": (24, 16_000),
    "sparse-16": (20, 16_000),
    "sparse-32": (16, 4000),
    "sparse-64": (12, 4000),
    "sparse-128": (12, 4000),
    "limited-90": (18, 4000),
    "limited-120": (18, 4000),
    "limited-150": (18, 4000),
}


def preset(name: str, geometry: Geometry) -> Settings:
    return bdgd_plus.preset(name, geometry.views, measured_arc(geometry))


def test_the_recommended_blocks_and_images_of_the_papers_cases() -> None:
    settings = {case: preset("recommended", case_geometry(case)) for case in PAPER_CASES}
    assert {case: (one.greedy.blocks, one.data.images) for case, one in settings.items()} == BLOCKS_AND_IMAGES


def test_an_arc_across_zero_has_the_preset_of_a_limited_arc() -> None:
    degrees = np.r_[0:45, 135:180] + 0.5
    across = ParallelBeam(np.deg2rad(degrees), bins=183)
    for name in ("recommended", "paper"):
        assert preset(name, across) == preset(name, case_geometry("limited-90"))


def test_a_problem_that_is_not_a_scan_has_the_preset_of_many_views() -> None:
    assert bdgd_plus.preset("recommended") == preset("recommended", case_geometry("sparse-128"))


def test_the_presets_have_the_papers_number_of_blocks() -> None:
    numbers = {case: preset("paper", case_geometry(case)).greedy.blocks for case in PAPER_CASES}
    assert numbers == {
        "sparse-8": 20,
        "sparse-16": 20,
        "sparse-32": 10,
        "sparse-64": 10,
        "sparse-128": 10,
        "limited-90": 30,
        "limited-120": 30,
        "limited-150": 20,
    }


def test_a_narrow_arc_is_sampled_in_single_precision() -> None:
    chosen = {case: preset("recommended", case_geometry(case)).inference.precision for case in PAPER_CASES}
    assert [case for case, precision in chosen.items() if precision == "single"] == ["limited-90"]


def test_the_paper_preset_is_the_papers() -> None:
    paper = preset("paper", case_geometry("sparse-32"))
    fit, greedy = paper.fit, paper.greedy
    assert (fit.epochs, fit.batch, fit.learning_rate, fit.final_learning_rate) == (150, 128, 1e-3, 1e-4)
    assert (fit.weight_decay, fit.warm_up) == (1e-3, 0)
    assert (greedy.loss, greedy.refit, greedy.sampling, greedy.start) == ("elbo", "none", "activations", "fresh")
    assert greedy.resample == greedy.restarts == 0
    assert (paper.block.channels, paper.block.variance) == (16, "inputs")
    assert paper.inference.sampling == "activations"
    assert paper.data.paper_set
    assert paper.data.ramp == "shifted"
