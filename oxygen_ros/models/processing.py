# SPDX-License-Identifier: Apache-2.0
"""What processors share on the host: checks, action spaces, normalization, copies to a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.actions import ActionComponent, ActionSpace, ComponentKind
from oxygen_ros.models.errors import ModelError
from oxygen_ros.observation import Observation

# Bins of a state that is written into the prompt.
STATE_BINS = 256


def pick_cameras(observation: Observation, cameras: Sequence[str]) -> list[str]:
    """Names of the cameras that are there, in the model's order.

    Raises ValueError for a camera the model does not have, for none at all, and for what is no image.
    """
    unknown = [name for name in observation.images if name not in cameras]
    if unknown:
        raise ValueError(f'camera "{unknown[0]}" is not one of the model\'s: {", ".join(cameras)}')
    present = [name for name in cameras if name in observation.images]
    if not present:
        raise ValueError(f"no camera image; the model looks through {', '.join(cameras)}")
    for name in present:
        image = observation.images[name]
        if image.ndim != 3 or image.shape[2] != 3 or image.size == 0 or image.dtype != np.uint8:
            raise ValueError(
                f'camera "{name}": an image is uint8 [height, width, 3], got {image.dtype} {image.shape}'
            )
    return present


def check_joints(observation: Observation, joints: Sequence[str]) -> None:
    """Raise ValueError unless the state has one finite number for each joint."""
    state = observation.joints
    if state.shape != (len(joints),):
        raise ValueError(f"the state must have {len(joints)} joints, got shape {state.shape}")
    if not np.isfinite(state).all():
        bad = joints[int(np.flatnonzero(~np.isfinite(state))[0])]
        raise ValueError(f'joint "{bad}" is not finite')


def read_action_space(where: str, entries: Any, joints: Sequence[str]) -> ActionSpace:
    """The action space of a checkpoint's "components" entry: a list of ActionComponent's fields.

    Raises ModelError, with `where` in front, for invalid components and joints that are not `joints`.
    """
    try:
        components = [ActionComponent(**{**entry, "kind": ComponentKind(entry["kind"])}) for entry in entries]
        space = ActionSpace(tuple(components))
    except (KeyError, TypeError, ValueError) as error:
        kinds = ", ".join(ComponentKind)
        raise ModelError(
            f"{where}: actions.components must be a list of objects with name, kind ({kinds}), unit and, "
            f"where the kind has them, frame and rotation: {error}"
        ) from None
    unknown = [name for name in space.joints if name not in joints]
    if unknown:
        raise ModelError(f'{where}: action joint "{unknown[0]}" is not among {list(joints)}')
    return space


def bin_state(normalized: NDArray[np.float64]) -> NDArray[np.int64]:
    """Bins 0..255 of equal width over -1..1; what lies outside goes to the first or last."""
    edges = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
    return np.clip(np.digitize(normalized, edges) - 1, 0, STATE_BINS - 1)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Normalization by the 1 % and 99 % quantiles [size]: q01 -> -1, q99 -> 1, no clipping."""

    q01: NDArray[np.float64]
    q99: NDArray[np.float64]

    @classmethod
    def read(cls, stats: Mapping[str, Any], name: str, size: int) -> Quantiles:
        """The entry `name` of norm_stats.json. Raises ModelError for a missing or invalid one."""
        if name not in stats:
            raise ModelError(f'norm_stats.json has no "{name}" (it has: {", ".join(stats)})')
        found = {}
        for quantile in ("q01", "q99"):
            try:
                values = np.asarray(stats[name][quantile], dtype=np.float64)
            except (KeyError, TypeError, ValueError):
                values = np.empty(0)
            if values.shape != (size,) or not np.isfinite(values).all():
                raise ModelError(f"norm_stats.json: {name} {quantile} must be {size} finite numbers")
            found[quantile] = values
        if (found["q01"] > found["q99"]).any():
            at = int(np.flatnonzero(found["q01"] > found["q99"])[0])
            raise ModelError(
                f"norm_stats.json: {name} q01 must not exceed q99, entry {at} has {found['q01'][at]} and "
                f"{found['q99'][at]}"
            )
        return cls(found["q01"], found["q99"])

    @property
    def _span(self) -> NDArray[np.float64]:
        # lerobot divides by 1e-8 where a joint is constant in the data; smaller spans count as that.
        span: NDArray[np.float64] = np.maximum(self.q99 - self.q01, 1e-8)
        return span

    def normalize(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2 * (x - self.q01) / self._span - 1

    def unnormalize(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return (x + 1) / 2 * self._span + self.q01


class HostToDevice:
    """Copies arrays to a GPU through one pinned buffer, made once. The model's thread owns it.

    A copy from pageable memory blocks the host, and the driver pins memory each time.
    """

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
