# SPDX-License-Identifier: Apache-2.0
"""A pi0.5 checkpoint folder to a model that the engine can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.models.pi05.config import read_config
from oxygen_ros.models.pi05.lerobot import LerobotProcessor
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.processor import PlainProcessor, Processor
from oxygen_ros.models.pi05.weights import load_network


def load(
    folder: Path,
    raw: dict[str, Any],
    *,
    device: torch.device,
    dtype: torch.dtype,
    denoise_steps: int | None,
    adapters: Sequence[Path],
    should_stop: Callable[[], bool] | None,
) -> Pi05:
    """Load weights, processor and text adapters; errors as in `load_model`.

    Folders of our own form say "model_type" in config.json, lerobot's say "type".
    """
    config = read_config(folder, raw)
    processor: Processor
    if raw.get("type") == "pi05":
        processor = lerobot = LerobotProcessor.load(folder, config, raw)
        config = lerobot.config
    else:
        processor = PlainProcessor.load(folder, config, raw)
    network = load_network(folder, config, device, dtype, should_stop)
    network.pack()
    model = Pi05(network, processor, denoise_steps=denoise_steps)
    for adapter in adapters:
        model.load_adapter(adapter)
    return model
