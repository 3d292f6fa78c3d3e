# SPDX-License-Identifier: Apache-2.0
"""Whether the process has lost its GPU. No ROS."""

from __future__ import annotations

import torch


def is_device_lost(device: torch.device, error: BaseException) -> bool:
    """Whether a CUDA error has made the context unusable: then even a synchronization fails."""
    if device.type != "cuda" or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
