# SPDX-License-Identifier: Apache-2.0
"""Model families behind one interface, and what they share: attention over pools, weights, LoRA."""

from oxygen_ros.models.errors import LoadInterrupted, ModelError
from oxygen_ros.models.interface import Capacity, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.models.loading import load_model

__all__ = [
    "Capacity",
    "Guide",
    "LoadInterrupted",
    "Model",
    "ModelError",
    "ModelSpec",
    "Prefix",
    "Rows",
    "load_model",
]
