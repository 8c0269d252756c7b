"""Bad input of every kind gets one clear line on standard error, nothing on standard output, and exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from bayescade.cli import run
from bayescade.physics.cases import case_geometry

GEOMETRY = json.loads(case_geometry("sparse-8").to_json())


def write_scan(path: Path, geometry: object = GEOMETRY, **arrays: np.ndarray) -> None:
    """A scan file with these arrays, good unless told otherwise."""
    arrays = arrays or {"sinogram": np.ones((2, 8, 183), np.float32)}
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        if geometry is not None:
            file.attrs["geometry"] = geometry if isinstance(geometry, str) else json.dumps(geometry)


@pytest.fixture
def folder(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with good and bad files, as the working folder; a test leaves it as it was."""
    monkeypatch.chdir(files)
    return files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good and bad files."""
    tmp_path = tmp_path_factory.mktemp("files")
    sinogram = np.ones((2, 8, 183), np.float32)
    write_scan(tmp_path / "good.h5")
    write_scan(tmp_path / "no_geometry.h5", None)
    write_scan(tmp_path / "no_sinogram.h5", other=sinogram)
    write_scan(tmp_path / "bad_json.h5", "{")
    write_scan(tmp_path / "list_json.h5", "[1]")
    write_scan(tmp_path / "missing_key.h5", {key: value for key, value in GEOMETRY.items() if key != "bins"})
    write_scan(tmp_path / "extra_key.h5", {**GEOMETRY, "colour": 1})
    write_scan(tmp_path / "bad_kind.h5", {**GEOMETRY, "kind": "cone"})
    write_scan(tmp_path / "degrees.h5", {**GEOMETRY, "angles": list(range(0, 160, 20))})
    write_scan(tmp_path / "text_angle.h5", {**GEOMETRY, "angles": ["a"] * 8})
    write_scan(tmp_path / "negative_width.h5", {**GEOMETRY, "bin_width": -1})
    write_scan(tmp_path / "wrong_shape.h5", sinogram=sinogram[:, :7])
    write_scan(tmp_path / "flat.h5", sinogram=sinogram[0])
    write_scan(tmp_path / "no_images.h5", sinogram=sinogram[:0])
    write_scan(tmp_path / "wrong_truth.h5", sinogram=sinogram, truth=np.ones((2, 64, 64)))
    write_scan(tmp_path / "few_truths.h5", sinogram=sinogram, truth=np.ones((1, 128, 128)))
    write_scan(tmp_path / "text.h5", sinogram=np.array([b"x"]))
    broken = sinogram.copy()
    broken[1, 3, 7] = np.nan
    write_scan(tmp_path / "nan.h5", sinogram=broken)
    broken[1, 3, 7] = np.inf
    write_scan(tmp_path / "infinite.h5", sinogram=broken)
    (tmp_path / "cut.h5").write_bytes((tmp_path / "good.h5").read_bytes()[:3000])
    (tmp_path / "text_file.h5").write_text("hello")
    (tmp_path / "text_file.npz").write_text("hello")
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "scan.tif").write_bytes(b"II")
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "small.npy", np.ones((2, 64, 64), np.float32))
    np.save(tmp_path / "images.npy", np.ones((2, 128, 128), np.float32))
    np.save(tmp_path / "nan.npy", np.full((1, 128, 128), np.nan, np.float32))
    write_scan(tmp_path / "truth.h5", None, truth=np.ones((2, 128, 128), np.float32))
    (tmp_path / "taken" / "figure.png").mkdir(parents=True)
    np.savez(tmp_path / "nothing.npz", other=np.ones(3))
    (tmp_path / "bad.toml").write_text("bins = ")
    (tmp_path / "unknown.toml").write_text("bins = 5\nviews = 3\ncolour = 1\n")
    (tmp_path / "no_angles.toml").write_text("bins = 5\n")
    (tmp_path / "no_bins.toml").write_text("views = 5\n")
    (tmp_path / "two_angles.toml").write_text("bins = 5\nviews = 3\nangles = [0.1]\n")
    (tmp_path / "bad_views.toml").write_text("bins = 5\nviews = -3\n")
    (tmp_path / "degrees.toml").write_text("bins = 5\nangles = [10, 90]\n")
    (tmp_path / "huge.toml").write_text("bins = 100000\nviews = 100000\nimage_shape = [100000, 100000]\n")
    with h5py.File(tmp_path / "number_geometry.h5", "w") as file:
        file["sinogram"] = sinogram
        file.attrs["geometry"] = 5
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["sinogram"] = h5py.SoftLink("/nowhere")
        file.attrs["geometry"] = json.dumps(GEOMETRY)
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file.create_group("sinogram")
        file.attrs["geometry"] = json.dumps(GEOMETRY)
    write_scan(tmp_path / "list_kind.h5", {**GEOMETRY, "kind": ["parallel"]})
    write_scan(tmp_path / "text_bins.h5", {**GEOMETRY, "bins": "183"})
    write_scan(tmp_path / "far.h5", {**GEOMETRY, "offset": 1e6})
    write_scan(tmp_path / "too_large.h5", sinogram=sinogram.astype(np.float64) * 1e300)
    (tmp_path / "small.npz").write_bytes((tmp_path / "small.npy").read_bytes())
    np.savez(tmp_path / "pickled.npz", images=np.array([{"a": 1}], dtype=object))
    (tmp_path / "list_arc.toml").write_text("bins = 5\nviews = 3\narc_degrees = [1, 2]\n")
    (tmp_path / "no_arc.toml").write_text("bins = 5\nviews = 3\narc_degrees = 0\n")
    (tmp_path / "deep.json").write_text("[" * 100000)
    (tmp_path / "large_image.toml").write_text("bins = 1\nviews = 1\nimage_shape = [50000, 50000]\n")
    (tmp_path / "arc_beside.toml").write_text("bins = 5\nangles = [0.1]\narc_degrees = 90\n")
    fan = "kind = 'fan'\nbins = 300\nviews = 9\nsource_origin = 300\nsource_detector = 400\n"
    (tmp_path / "fan_no_arc.toml").write_text(fan)
    (tmp_path / "geo.yaml").write_text("bins: 5\n")
    return tmp_path


SIMULATE = "simulate --phantom ellipses --case sparse-8 -o out.h5"
RECONSTRUCT = "reconstruct good.h5 --model fbp -o out.h5"

# command line, and words its one line must have
BAD: list[tuple[str, str]] = [
    # files
    ("reconstruct none.h5 --model fbp -o out.h5", "none.h5: there is no such file"),
    ("reconstruct sub --model fbp -o out.h5", "sub: expected a file, got a folder"),
    ("reconstruct scan.tif --model fbp -o out.h5", "expected a name that ends in .h5"),
    ("reconstruct text_file.h5 --model fbp -o out.h5", "not a complete HDF5 file"),
    ("reconstruct text_file.npz --model fbp -o out.h5", "not a complete NPZ file"),
    ("reconstruct empty.h5 --model fbp -o out.h5", "not a complete HDF5 file"),
    ("reconstruct cut.h5 --model fbp -o out.h5", "cut.h5"),
    ("reconstruct no_geometry.h5 --model fbp -o out.h5", "expected an attribute 'geometry'"),
    ("reconstruct no_sinogram.h5 --model fbp -o out.h5", "expected an array 'sinogram', found 'other'"),
    ("reconstruct text.h5 --model fbp -o out.h5", "expected numbers in 'sinogram'"),
    # geometry inside a file
    ("reconstruct bad_json.h5 --model fbp -o out.h5", "bad_json.h5: geometry: expected JSON text"),
    ("reconstruct list_json.h5 --model fbp -o out.h5", "expected a table"),
    ("reconstruct missing_key.h5 --model fbp -o out.h5", "missing key 'bins'; the keys are"),
    ("reconstruct extra_key.h5 --model fbp -o out.h5", "unknown key 'colour'; the keys are"),
    ("reconstruct bad_kind.h5 --model fbp -o out.h5", "expected kind 'parallel'"),
    ("reconstruct degrees.h5 --model fbp -o out.h5", "look like degrees; multiply by pi/180"),
    ("reconstruct text_angle.h5 --model fbp -o out.h5", "angles: expected numbers"),
    (
        "reconstruct negative_width.h5 --model fbp -o out.h5",
        "bin_width: expected a positive length from 1e-9 to 1e9, got -1",
    ),
    # shapes and numbers
    ("reconstruct wrong_shape.h5 --model fbp -o out.h5", "expected 'sinogram' of shape (images, 8, 183)"),
    ("reconstruct flat.h5 --model fbp -o out.h5", "expected 'sinogram' of shape (images, 8, 183)"),
    ("reconstruct no_images.h5 --model fbp -o out.h5", "at least one image"),
    ("reconstruct wrong_truth.h5 --model fbp -o out.h5", "expected 'truth' of shape (images, 128, 128)"),
    ("reconstruct few_truths.h5 --model fbp -o out.h5", "expected 2 truths, one for each sinogram"),
    (
        "reconstruct nan.h5 --model fbp -o out.h5",
        "has 1 values that are NaN or infinite or too large, the first in image 1 at row 3, column 7",
    ),
    ("reconstruct infinite.h5 --model fbp -o out.h5", "image 1 at row 3, column 7"),
    # names
    ("reconstruct good.h5 --model fpb -o out.h5", "unknown model 'fpb'; did you mean 'fbp'?"),
    ("reconstruct good.h5 --model bdgd-plus/sparse-3 -o out.h5", "unknown model 'bdgd-plus/sparse-3'"),
    ("evaluate nope --case sparse-8", "unknown model 'nope'"),
    ("benchmark paper --methods fbp,nope", "unknown method 'nope'"),
    ("benchmark paper --methods fbp --cases sparse-x", "unknown case 'sparse-x'"),
    ("simulate --phantom elipses --case sparse-8 -o out.h5", "unknown phantom 'elipses'; did you mean 'ellipses'?"),
    ("simulate --phantom ellipses --case spars-8 -o out.h5", "expected sparse-N (N views) or limited-N"),
    (SIMULATE + " --split tests", "unknown split 'tests'; there are: train, validation, calibration, test"),
    ("benchmark", "See: bayescade benchmark --help"),
    ("benchmark papers", "papers"),
    ("recontruct good.h5", "recontruct"),
    # options
    (RECONSTRUCT + " --samples 0", "--samples: expected a whole number from 1"),
    (RECONSTRUCT + " --samples many", "expected a whole number, got 'many'"),
    (RECONSTRUCT + " --device tpu", "--device: expected auto, cpu or cuda, got 'tpu'"),
    (RECONSTRUCT + " --set window=box", "unknown window 'box'; there are: ram-lak"),
    (RECONSTRUCT + " --set windw=hann", "unknown setting 'windw'; did you mean 'window'?"),
    (RECONSTRUCT + " --set window=3", "window: expected text, got 3"),
    (RECONSTRUCT + " --set window", "expected key=value"),
    (RECONSTRUCT + " --colour red", "--colour"),
    ("reconstruct good.h5 --model fbp", "-o"),
    ("reconstruct --model fbp -o out.h5", "See: bayescade reconstruct --help"),
    (SIMULATE + " --noise -1", "noise: expected a number from 0 to 1e6"),
    (SIMULATE + " --noise nan", "noise: expected a number from 0 to 1e6"),
    (SIMULATE + " --photons -5", "photons: expected a positive count"),
    (SIMULATE + " --photons 100 --attenuation 0", "attenuation: expected a positive number"),
    (SIMULATE + " --images 0", "--images: expected a number of at least 1"),
    (SIMULATE + " --seed -1", "seed: expected a whole number of at least 0 and below 2^63, got -1"),
    (SIMULATE + " --noise some", "expected a number, got 'some'"),
    (SIMULATE + " --images 1.5", "expected a whole number, got '1.5'"),
    (SIMULATE + " --grid-factor 0", "from 1 to 8"),
    (SIMULATE + " --geometry bad.toml", "expected one of --case (e.g. --case sparse-32) and --geometry"),
    ("simulate --phantom ellipses -o out.h5", "got neither"),
    ("evaluate fbp", "got neither"),
    ("benchmark paper --methods fbp --images 101", "has 100 images, got 101"),
    ("benchmark paper --methods fbp,tv --set window=hann", "--set: expected one method to set"),
    (RECONSTRUCT.replace("fbp", "tv") + " --set weight=-1", "weight: expected a positive number"),
    (RECONSTRUCT.replace("fbp", "tv") + " --set fidelity=huber", "expected least-squares, weighted, poisson"),
    # geometry files
    ("simulate --phantom ellipses --geometry none.toml -o out.h5", "none.toml: there is no such file"),
    ("simulate --phantom ellipses --geometry bad.toml -o out.h5", "bad.toml: expected a TOML file"),
    ("simulate --phantom ellipses --geometry geo.yaml -o out.h5", "ends in .toml or .json"),
    ("simulate --phantom ellipses --geometry unknown.toml -o out.h5", "unknown.toml: geometry: unknown key 'colour'"),
    (
        "simulate --phantom ellipses --geometry no_angles.toml -o out.h5",
        "one of angles, angles_degrees, views, got none",
    ),
    ("simulate --phantom ellipses --geometry two_angles.toml -o out.h5", "got angles and views"),
    ("simulate --phantom ellipses --geometry no_bins.toml -o out.h5", "missing key 'bins'"),
    ("simulate --phantom ellipses --geometry bad_views.toml -o out.h5", "views: expected a whole number"),
    ("simulate --phantom ellipses --geometry degrees.toml -o out.h5", "look like degrees"),
    ("simulate --phantom ellipses --geometry huge.toml -o out.h5", "needs about"),
    ("simulate --phantom ellipses --geometry arc_beside.toml -o out.h5", "arc_degrees: expected only together"),
    ("simulate --phantom ellipses --geometry fan_no_arc.toml -o out.h5", "a fan beam needs it together with views"),
    # images
    ("simulate --phantom none.npy --case sparse-8 -o out.h5", "none.npy: there is no such file"),
    ("simulate --phantom small.npy --case sparse-8 -o out.h5", "these images have 64 x 64; use a geometry file"),
    ("simulate --phantom nan.npy --case sparse-8 -o out.h5", "NaN"),
    ("simulate --phantom nothing.npz --case sparse-8 -o out.h5", "expected an array 'images', found 'other'"),
    ("simulate --phantom images.npy --case sparse-8 --images 3 -o out.h5", "the file holds 2 images, 3 were asked for"),
    ("evaluate fbp --case sparse-8 --truth small.npy", "these images have 64 x 64"),
    # files by another hand
    ("reconstruct number_geometry.h5 --model fbp -o out.h5", "expected text in the attribute 'geometry', got 5"),
    ("reconstruct link.h5 --model fbp -o out.h5", "link.h5"),
    ("reconstruct group.h5 --model fbp -o out.h5", "group.h5"),
    ("reconstruct list_kind.h5 --model fbp -o out.h5", "expected kind"),
    ("reconstruct text_bins.h5 --model fbp -o out.h5", "bins: expected numbers, got ['183']"),
    ("reconstruct far.h5 --model fbp -o out.h5", "no ray meets the image"),
    ("reconstruct too_large.h5 --model fbp -o out.h5", "too large"),
    ("simulate --phantom small.npz --case sparse-8 -o out.h5", "not a complete NPZ file"),
    ("simulate --phantom pickled.npz --case sparse-8 -o out.h5", "pickled.npz"),
    ("simulate --phantom ellipses --geometry list_arc.toml -o out.h5", "arc_degrees: expected a number of degrees"),
    ("simulate --phantom ellipses --geometry no_arc.toml -o out.h5", "arc_degrees: expected an arc"),
    ("simulate --phantom ellipses --geometry deep.json -o out.h5", "expected JSON text"),
    ("simulate --phantom ellipses --geometry large_image.toml -o out.h5", "needs about"),
    # seeds and noise, the same for every command
    ("benchmark paper --methods fbp --seed -1 --out table", "seed: expected a whole number"),
    (RECONSTRUCT + " --seed -1", "seed: expected a whole number"),
    (SIMULATE + " --seed 18446744073709551616", "seed: expected a whole number"),
    ("evaluate fbp --case sparse-8 --noise nan", "noise: expected"),
    (SIMULATE + " --photons 1e20", "photons: expected a positive count"),
    (SIMULATE + " --photons 1e9 --noise -3", "noise: expected"),
    (
        SIMULATE + " --noise-model gausian",
        "unknown noise model 'gausian'; did you mean 'gaussian'? There are: gaussian",
    ),
    (SIMULATE + " --noise-model poisson --noise 0.1", "--noise-model: expected it without --noise and --photons"),
    (SIMULATE + " --noise-set relative=0.1", "--noise-set relative=0.1: expected --noise-model as well"),
    (SIMULATE + " --noise-model gaussian --noise-set photons=3", "unknown setting 'photons'. There is: relative"),
    (SIMULATE + " --noise-model poisson --noise-set photons=0", "photons: expected a positive count"),
    ("evaluate fbp --case sparse-8 --noise-model gaussian --noise-set relative", "expected key=value, got 'relative'"),
    # where to write
    ("simulate --phantom images.npy --case sparse-8 -o images.npy", "expected a name that ends in"),
    ("simulate --phantom truth.h5 --case sparse-8 -o truth.h5", "this is also an input file"),
    ("reconstruct good.h5 --model fbp -o good.h5/out.h5", "is a file, not a folder"),
    ("demo --out here --device tpu", "--device: expected"),
    ("demo --out taken", "expected a file name to write to, got a folder"),
    ("evaluate nope --case sparse-8 --report here", "unknown model"),
    ("reconstruct good.h5 --model fbp -o out.txt", "expected a name that ends in .h5"),
    ("reconstruct good.h5 --model fbp -o none/out.h5", "mkdir -p none"),
    ("reconstruct good.h5 --model fbp -o good.h5", "this is also an input file"),
    ("simulate --phantom ellipses --case sparse-8 -o sub", "expected a name that ends in"),
    ("demo --out good.h5", "cannot make this folder"),
    ("evaluate fbp --case sparse-8 --report good.h5", "cannot make this folder"),
]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and the time it was written."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.mark.parametrize("extra", [[], ["--json"]], ids=["words", "json"])
@pytest.mark.parametrize(("line", "words"), BAD, ids=[f"{number}" for number in range(len(BAD))])
def test_bad_input(line: str, words: str, extra: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = listing(folder)
    code = run([*line.split(), *extra])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("bayescade: ")
    assert err.count("\n") == 1
    assert words in err
    assert "Traceback" not in err
    assert listing(folder) == before, "a file was left behind or changed"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "words"), [BAD[0], BAD[25]])
def test_bad_input_as_a_process(line: str, words: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bayescade", *line.split()], capture_output=True, text=True, cwd=folder
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
