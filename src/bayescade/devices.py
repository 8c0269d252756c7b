"""Where the work is done."""

import torch

from bayescade.errors import UserError


def choose_device(name: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is a GPU, else the CPU; `cpu`, `cuda`, `cuda:1` are what they say."""
    kind, _, number = str(name).partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not number.isdigit()):
        raise UserError(f"--device: expected auto, cpu or cuda, got '{name}'")
    if kind == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: torch sees no such GPU here; use cpu or auto")
    return torch.device(str(name))
