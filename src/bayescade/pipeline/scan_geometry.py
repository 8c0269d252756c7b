"""The scan of a command, from the name of a case or from a geometry file."""

from pathlib import Path
from typing import Any

import numpy as np

from bayescade.config import read_toml
from bayescade.errors import UserError
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import Geometry, geometry_from_dict, geometry_from_json
from bayescade.storage.files import check_readable, read_text, suffix


def choose_geometry(case: str | None, path: str | None) -> tuple[str, Geometry]:
    """The name of the scan and its geometry, from exactly one of `--case` and `--geometry`."""
    if (case is None) == (path is None):
        given = "both" if case is not None else "neither"
        raise UserError(f"expected one of --case (e.g. --case sparse-32) and --geometry (e.g. geo.toml), got {given}")
    if case is not None:
        return case, case_geometry(case)
    assert path is not None
    return Path(path).stem, read_geometry(path)


def read_geometry(path: str) -> Geometry:
    """A geometry file: JSON as in scan files, or TOML.

    TOML files need `bins` and the angles; a fan beam also needs its distances. Other keys have defaults. The angles are given
    by one of `angles` (radians), `angles_degrees`, or `views` with `arc_degrees`. With `views`, the arc starts at
    `first_degrees` and is divided into equal intervals, with one view in the middle of each interval.
    """
    check_readable(path)
    try:
        if suffix(path) == ".json":
            return geometry_from_json(read_text(path))
        if suffix(path) == ".toml":
            return geometry_from_dict(_with_defaults(read_toml(path)))
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(path) else f"{path}: {error}") from None
    raise UserError(f"{path}: expected a geometry file that ends in .toml or .json, got '{Path(path).suffix}'")


def _with_defaults(table: dict[str, Any]) -> dict[str, Any]:
    """The table with all keys of a geometry: default values, and `angles` in radians."""
    defaults = {"kind": "parallel", "bin_width": 1.0, "offset": 0.0, "pixel_size": 1.0, "image_shape": [128, 128]}
    given = [key for key in ("angles", "angles_degrees", "views") if key in table]
    if len(given) != 1:
        raise UserError(f"expected one of angles, angles_degrees, views, got {' and '.join(given) or 'none'}")
    for key in ("arc_degrees", "first_degrees"):
        if key in table and "views" not in table:
            raise UserError(f"{key}: expected only together with views = N; here the angles are listed")
    if table.get("kind") == "fan" and "views" in table and "arc_degrees" not in table:
        raise UserError("arc_degrees: a fan beam needs it together with views, e.g. arc_degrees = 360")
    table = {**defaults, **table}
    if "angles_degrees" in table:
        table["angles"] = _radians(table.pop("angles_degrees"))
    if "views" in table:
        views, arc, first = table.pop("views"), table.pop("arc_degrees", 180.0), table.pop("first_degrees", 0.0)
        if type(views) is not int or not 1 <= views <= 100_000:
            raise UserError(f"views: expected a whole number from 1 to 100000, got {views!r}")
        for name, value in (("arc_degrees", arc), ("first_degrees", first)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1440:
                raise UserError(f"{name}: expected a number of degrees from -1440 to 1440, got {value!r:.40}")
        if arc == 0:
            raise UserError("arc_degrees: expected an arc, got 0: all views would be the same")
        table["angles"] = list(_radians(first) + (np.arange(views) + 0.5) * _radians(arc) / views)
    return table


def _radians(degrees: Any) -> Any:
    try:
        return np.deg2rad(np.asarray(degrees, dtype=np.float64))
    except (TypeError, ValueError):
        raise UserError(f"expected angles in degrees as numbers, got {degrees!r:.60}") from None
