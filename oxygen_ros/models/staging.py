# SPDX-License-Identifier: Apache-2.0
"""Numbers of the host on their way to a GPU, through a pinned buffer that is made once.

From ordinary memory a copy stops the host until it is done, and the driver pins a piece of its own each time.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


class Staging:
    """One pinned buffer; the model's thread owns it."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self._sent: torch.cuda.Event | None = None

    def send(self, array: NDArray[Any], device: torch.device) -> torch.Tensor:
        """The array as a tensor on `device`; on a CPU it shares the array's memory."""
        host = torch.from_numpy(array)
        if device.type != "cuda":
            return host.to(device)
        if self._buffer is None or self._sent is None or self._buffer.shape != host.shape:
            self._buffer = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            # The last copy out of it is long over, unless several observations are sent in a row.
            self._sent.synchronize()
        self._buffer.copy_(host)
        there = self._buffer.to(device, non_blocking=True)
        self._sent.record(torch.cuda.current_stream(device))
        return there
