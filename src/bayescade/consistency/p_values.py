"""How unusual the symptoms of a scan are, compared with clean simulated scans of the same geometry.

The p-value of a symptom is the share of clean scans with a value at least as large; beyond most of the clean scans the
share is continued by an exponential tail. The smallest p-value of all symptoms is the statistic of one test: the scan is
unusual if it is smaller than in all but a share ALARMS of clean scans. The symptom with the smallest p-value is the cause.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ALARMS = 0.03  # share of clean scans that are called unusual
BODY = 0.9  # of the clean scans: the tail begins here
# Least scale of a tail, in the units of the symptom: values that clean scans never have are not infinitely unlikely.
LEAST_SCALES = {"hardening": 0.7, "stripes": 0.3, "rings": 0.03, "correlated": 0.03, "noise": 0.03}
LEAST_SCALE = 0.1
MOST_VALUES = 500  # that are stored


@dataclasses.dataclass(frozen=True)
class Null:
    """The values of a symptom in clean scans."""

    values: tuple[float, ...]  # in order
    least_scale: float

    @classmethod
    def of(cls, name: str, values: Sequence[float]) -> "Null":
        """From the values of some scans; of very many scans only quantiles are stored."""
        ordered = np.sort(np.asarray(values, dtype=np.float64))
        if len(ordered) > MOST_VALUES:
            ordered = np.quantile(ordered, np.linspace(0, 1, MOST_VALUES))
        return cls(tuple(float(f"{value:.6g}") for value in ordered), LEAST_SCALES.get(name, LEAST_SCALE))

    def p_value(self, value: float) -> float:
        """The probability of a value at least as large in a clean scan."""
        if not self.values or math.isnan(value):
            return 1.0
        values = np.asarray(self.values)
        limit = float(np.quantile(values, BODY))
        if value <= limit:
            return float((np.sum(values >= value) + 1) / (len(values) + 1))
        above = values[values > limit] - limit
        scale = max(float(above.mean()) if len(above) else 0.0, self.least_scale)
        return (1 - BODY) * math.exp(-min((value - limit) / scale, 500.0))


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the test says of one scan."""

    p_value: float  # of the test: the share of clean scans that are as unusual
    unusual: bool
    symptoms: dict[str, float]  # p-value of every symptom


@dataclasses.dataclass(frozen=True)
class UnusualScans:
    """The test for one geometry and noise."""

    nulls: dict[str, Null]
    smallest: tuple[float, ...]  # the smallest p-values of clean scans, in order

    @classmethod
    def fit(cls, scans: Sequence[Mapping[str, float]]) -> "UnusualScans":
        """From the symptoms of clean scans: half of them give the p-values, the other half their smallest ones."""
        first, second = scans[::2], scans[1::2]
        names = list(dict.fromkeys(name for scan in scans for name in scan))
        halves = [
            {name: Null.of(name, [scan[name] for scan in half if name in scan]) for name in names}
            for half in (first, second)
        ]
        smallest = []
        for nulls, others in ((halves[0], second), (halves[1], first)):
            smallest += [min(nulls[name].p_value(value) for name, value in scan.items()) for scan in others if scan]
        everything = {name: Null.of(name, [scan[name] for scan in scans if name in scan]) for name in names}
        return cls(everything, tuple(float(f"{value:.6g}") for value in sorted(smallest)))

    def test(self, scan: Mapping[str, float]) -> Finding:
        """The test of one scan."""
        by_name = {name: self.nulls[name].p_value(value) for name, value in scan.items() if name in self.nulls}
        smallest = min(by_name.values(), default=1.0)
        as_small = int(np.searchsorted(np.asarray(self.smallest), smallest, side="right"))
        p = (as_small + 1) / (len(self.smallest) + 1)
        if as_small == 0 and self.smallest:  # more unusual than all clean scans: by how much
            p *= min(1.0, smallest / self.smallest[0])
        return Finding(p, p <= ALARMS, by_name)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        nulls = {name: {"values": list(null.values), "scale": null.least_scale} for name, null in self.nulls.items()}
        return {"nulls": nulls, "smallest": list(self.smallest)}

    @classmethod
    def from_json(cls, values: Any) -> "UnusualScans":
        """The test of `to_json`."""
        nulls = {
            str(name): Null(tuple(float(v) for v in null["values"]), float(null["scale"]))
            for name, null in values["nulls"].items()
        }
        return cls(nulls, tuple(float(value) for value in values["smallest"]))
