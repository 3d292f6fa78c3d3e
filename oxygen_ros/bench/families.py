# SPDX-License-Identifier: Apache-2.0
"""The presets that can be measured, by name. A new family is a line here and its `ModelPreset`."""

from __future__ import annotations

from oxygen_ros.bench.pi05.preset import Pi05Preset
from oxygen_ros.bench.preset import ModelPreset
from oxygen_ros.models.pi05 import config as pi05

PRESETS: dict[str, type[ModelPreset]] = {
    **dict.fromkeys(pi05.PRESETS, Pi05Preset),
}
