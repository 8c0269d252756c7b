"""Where the work is done."""

import torch

from bayescade.errors import UserError


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is a GPU, else the CPU."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device: expected auto, cpu or cuda, got '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use --device cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
