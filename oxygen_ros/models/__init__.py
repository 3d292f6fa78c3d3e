# SPDX-License-Identifier: Apache-2.0
"""Model families behind one interface, and what they share: layers, K/V pools, captured programs, loading."""

from oxygen_ros.models.errors import LoadInterrupted, ModelError
from oxygen_ros.models.interface import Capacity, ExpertSpec, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.models.loading import load_model

__all__ = [
    "Capacity",
    "ExpertSpec",
    "Guide",
    "LoadInterrupted",
    "Model",
    "ModelError",
    "ModelSpec",
    "Prefix",
    "Rows",
    "load_model",
]
