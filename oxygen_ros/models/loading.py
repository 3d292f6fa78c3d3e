# SPDX-License-Identifier: Apache-2.0
"""Loads a checkpoint folder, whatever its family.

A new family is a line in FAMILIES and a folder beside pi05/ with a function `load` in the module named there.
A family is imported when a checkpoint asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.interface import Model

FAMILIES = {"pi05": "oxygen_ros.models.pi05.model"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(
    folder: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    denoise_steps: int | None = None,
    adapters: Sequence[str | Path] = (),
    should_stop: Callable[[], bool] | None = None,
) -> Model:
    """Load a checkpoint folder.

    device:         "cpu", "cuda", "cuda:1", ...
    denoise_steps:  S; default the checkpoint's
    adapters:       PEFT folders of text adapters
    should_stop:    called between tensors; when true, LoadInterrupted is raised

    Raises ModelError naming the file or tensor, what was found, and the cure.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ModelError(f'model folder "{folder}" does not exist')
    if dtype not in DTYPES:
        raise ModelError(f'dtype must be one of {", ".join(DTYPES)}, got "{dtype}"')
    config = path / "config.json"
    try:
        raw = json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{config} is missing: a checkpoint folder needs config.json") from None
    except OSError as error:
        raise ModelError(f"{config} cannot be read: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{config} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{config} must hold a JSON object, got {type(raw).__name__}")
    family = raw.get("model_type") or raw.get("type")
    if family not in FAMILIES:
        raise ModelError(f'{config}: model family "{family}" is not known; known: {", ".join(FAMILIES)}')
    try:
        load: Callable[..., Model] = import_module(FAMILIES[family]).load
    except ModuleNotFoundError as error:
        raise ModelError(
            f"model family {family}: {error}; `make build` (colcon build) installs a new file, pip a package"
        ) from error
    return load(
        path,
        raw,
        device=check_device(device),
        dtype=DTYPES[dtype],
        denoise_steps=denoise_steps,
        adapters=[Path(adapter).expanduser() for adapter in adapters],
        should_stop=should_stop,
    )


def check_device(name: str) -> torch.device:
    """The device by its name. Raises ModelError, with the cure, if this torch build cannot compute on it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f'device "{name}" is no torch device: {error}') from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ModelError(f'device must be "cpu" or "cuda", got "{name}"')
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ModelError(
            f'device "{name}": this torch ({torch.__version__}) sees {count or "no"} CUDA '
            f"device{'' if count == 1 else 's'}; check the driver and that torch was built with CUDA, or use "
            '"cpu"'
        )
    major, minor = torch.cuda.get_device_capability(device)
    built_for = torch.cuda.get_arch_list()
    if not any(runs_on(arch, major, minor) for arch in built_for):
        raise ModelError(
            f'device "{name}" ({torch.cuda.get_device_name(device)}) is sm_{major}{minor}, this torch '
            f"({torch.__version__}) is built for {', '.join(built_for)}: install a torch build for "
            f"sm_{major}{minor}"
        )
    return device


def runs_on(arch: str, major: int, minor: int) -> bool:
    """Whether code built for `arch` runs on a device: binaries within a major version, PTX on newer ones."""
    kind, _, digits = arch.rstrip("af").partition("_")
    if not digits.isdigit():
        return False
    built = divmod(int(digits), 10)
    if kind == "compute":
        return built <= (major, minor)
    return built[0] == major and built[1] <= minor
