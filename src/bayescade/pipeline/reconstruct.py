"""`bayescade reconstruct`: reads a scan file with one or thousands of scans, writes a result file."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayescade.data.scan import ScanReader
from bayescade.data.simulate import chunks
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.models import ANY, ANY_MODEL, dedicated_model, load_model
from bayescade.pipeline.scores import mean, result_scores, uncertainty_row
from bayescade.progress import progress
from bayescade.results import ResultWriter
from bayescade.seeds import check_seed
from bayescade.storage.arrays import check_suffix
from bayescade.storage.files import check_other_file, check_writable


def reconstruct(
    scan: str,
    model: str,  # `any` works for every scan
    out: str,
    *,
    samples: int = 100,
    seed: int = 0,
    settings: Sequence[str] = (),
    device: str = "auto",
) -> dict[str, Any]:
    """Writes a result file; gives a summary, with scores if the scan file has the truth."""
    check_suffix(out)
    check_writable(out)
    check_other_file(out, scan)
    check_samples(samples)
    check_seed(seed)
    torch_device = choose_device(device)
    start = time.perf_counter()
    with (
        ScanReader(scan) as reader,
        ResultWriter(out) as writer,
        progress(f"reconstructing by {model}", reader.count) as advance,
    ):
        method = load_model(model, reader.geometry, settings=settings, device=torch_device)
        for first, number in chunks(reader.geometry, reader.count):
            batch = reader.read(first, number)
            result = method(batch.sinogram, samples=samples, seed=seed, index=first)
            if batch.truth is not None:
                scores = result_scores(result, batch.truth)
                result = dataclasses.replace(result, truth=batch.truth, scores=scores)
            writer.append(result)
            advance(number)
    return {
        "out": str(Path(out)),
        "model": model,
        "images": reader.count,
        "seconds": time.perf_counter() - start,
        "warning": writer.warning,
        "dedicated": dedicated_model(reader.geometry) if model in (ANY, ANY_MODEL) else None,
        **{name: mean(values) for name, values in writer.scores.items() if ":" not in name},
        "uncertainty": uncertainty_row(writer.scores),
    }


def check_samples(samples: int) -> None:
    """Raises an error unless the number of Monte-Carlo samples is from 1 to 1000000."""
    if not 1 <= samples <= 1_000_000:
        raise UserError(f"--samples: expected a whole number from 1 to 1000000, got {samples}")
