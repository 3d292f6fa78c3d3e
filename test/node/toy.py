# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""A model that does as it is told, and an oxygen_node that loads it: for what a good model never does.

Here lives no test. Run as a program it is oxygen_node with `load_toy` for `load_model`. The model's folder
holds toy.yaml:

    load_seconds, fail_load (once, with an error nobody expects)
    step_seconds (of one decode step), denoise_seconds, first_seconds (of the very first chunk)
    fail_ticks (denoise raises), lost_ticks (as if the GPU were gone), slow_ticks (tick: seconds more)
    nan_ticks (actions are NaN), jump_ticks (actions far beyond limits), obedient (a guide is followed)
    look (of the first action joint 1..3 are red, green, blue / 255 of the top camera's first pixel, 4..6 of
        its last, the gripper the red of the wrist's first), noisy (actions are the noise)
    longest_instruction (longer ones are refused), meddle (a library that takes over logging)
    clock_file (seconds in it are what somebody set the system's clock forward by)

Ticks are counted from the end of the warm-up.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# As bin/oxygen_node does, before any library starts a thread that would take the signal.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from oxygen_ros.models import Capacity, Guide, LoadInterrupted, Model, ModelError, ModelSpec, Prefix, Rows
from oxygen_ros.observation import Observation

JOINTS = ("joint1", "joint2", "joint3", "joint4", "joint5", "joint6", "gripper")
END = 0


class ToyModel(Model):
    """Answers "abcdefg" to everything; its arm stays where it is."""

    def __init__(self, orders: dict[str, Any], warmup_ticks: int) -> None:
        self.orders = orders
        self.device = torch.device("cpu")
        self.spec = ModelSpec(
            family="toy",
            cameras=("top", "wrist"),
            image_size=(24, 32),
            joints=JOINTS,
            action_joints=JOINTS,
            representation="position",
            horizon=int(orders.get("horizon", 20)),
            action_dim=8,
            step=0.05,
            denoise_steps=1,
            vocabulary=128,
            eos_ids=(END,),
            max_prefix=16,
            cache_bytes_per_token=1,
        )
        self._tick = -warmup_ticks
        self._has_begun = False

    def allocate(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._states = np.zeros((capacity.frames, 2, len(JOINTS)))

    def process(self, observation: Observation) -> NDArray[np.float64]:
        most = self.orders.get("longest_instruction", 1000)
        if len(observation.instruction) > most:
            raise ValueError(
                f"the instruction has {len(observation.instruction)} letters, {most} fit: shorten it"
            )
        if not self.orders.get("look"):
            return np.stack([observation.joints, observation.joints])
        top, wrist = observation.images["top"], observation.images["wrist"]
        seen = np.array([*top[0, 0], *top[-1, -1], wrist[0, 0, 0]], np.float64) / 255
        return np.stack([seen, observation.joints])

    def encode(self, inputs: Any, slot: int) -> Prefix:
        self._states[slot] = inputs
        return Prefix(8, 8)

    def denoise(self, slot: int, noise: torch.Tensor, guide: Guide | None = None) -> torch.Tensor:
        self._tick += 1
        time.sleep(self.orders.get("denoise_seconds", 0.0))
        if not self._has_begun:
            self._has_begun = True
            time.sleep(self.orders.get("first_seconds", 0.0))
        time.sleep(self.orders.get("slow_ticks", {}).get(self._tick, 0.0))
        if self.orders.get("meddle"):
            logging.getLogger("library").debug("a line a tick")
        if self._tick in self.orders.get("fail_ticks", ()):
            raise RuntimeError(f"told to fail at tick {self._tick}")
        if self._tick in self.orders.get("lost_ticks", ()):
            raise RuntimeError("the device is lost")
        actions = torch.zeros(self.spec.horizon, self.spec.action_dim)
        actions[0, : len(JOINTS)], actions[1:, : len(JOINTS)] = torch.from_numpy(self._states[slot])
        if self.orders.get("noisy"):
            actions = noise.clone()
        if self._tick in self.orders.get("nan_ticks", ()):
            actions[3, 2] = float("nan")
        if self._tick in self.orders.get("jump_ticks", ()):
            actions[:, 1] = 100.0
        if self.orders.get("obedient") and guide is not None:
            actions += guide.weights * (guide.previous - actions)
        return actions

    def extend(self, rows: Rows) -> torch.Tensor:
        time.sleep(self.orders.get("step_seconds", 0.0))
        tokens = rows.token[rows.wants_logits[: rows.wanted]].tolist()
        logits = torch.zeros(rows.wanted, self.spec.vocabulary)
        for row, token in enumerate(tokens):
            follows = token + 1 if ord("a") <= token < ord("g") else END if token == ord("g") else ord("a")
            logits[row, follows] = 1.0
        return logits

    def unprocess(self, actions: torch.Tensor, observation: Observation) -> NDArray[np.float64]:
        return actions[:, : len(JOINTS)].numpy().astype(np.float64)

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> torch.Tensor:
        padded = torch.zeros(self.spec.horizon, self.spec.action_dim)
        padded[:, : len(JOINTS)] = torch.from_numpy(actions)
        return padded

    def tokenize(self, text: str) -> list[int]:
        return [min(ord(letter), 127) for letter in text]

    def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids)

    @property
    def adapters(self) -> tuple[str, ...]:
        return ()

    def pool_bytes(self) -> int:
        return self._states.nbytes


def load_toy(folder: str, *, should_stop: Callable[[], bool] | None = None, **ignored: object) -> ToyModel:
    path = Path(folder) / "toy.yaml"
    if not path.is_file():
        raise ModelError(f"{path} is missing")
    orders = yaml.safe_load(path.read_text())
    if orders.pop("fail_load", False):
        path.write_text(yaml.safe_dump(orders))
        raise KeyError("told to fail once")
    until = time.monotonic() + orders.get("load_seconds", 0.0)
    while time.monotonic() < until:
        if should_stop is not None and should_stop():
            raise LoadInterrupted("told to stop")
        time.sleep(0.02)
    if orders.get("meddle"):
        if os.environ.get("HF_HUB_OFFLINE") != "1":
            raise ModelError("this library would ask a hub now")
        logging.basicConfig(level=logging.DEBUG, force=True, stream=sys.stdout)
    if "clock_file" in orders:
        set_clock(Path(orders["clock_file"]))
    return ToyModel(orders, orders.get("warmup_ticks", 6))


def set_clock(file: Path) -> None:
    """From now on the node's ROS time is the system's plus the seconds in a file, as if somebody set it."""
    from oxygen_ros.node.timekeeper import TimeKeeper

    ahead_ns = 0
    now_ns = TimeKeeper.now_ns

    def read() -> None:
        nonlocal ahead_ns
        while True:
            if words := file.read_text():
                ahead_ns = int(float(words) * 1e9)
            time.sleep(0.01)

    TimeKeeper.now_ns = lambda self: now_ns(self) + ahead_ns  # type: ignore[method-assign]
    threading.Thread(target=read, daemon=True).start()


if __name__ == "__main__":
    from oxygen_ros.node import worker
    from oxygen_ros.node.main import main

    # There is no device to lose on a CPU; what happens when one is lost is tried all the same.
    worker.is_poisoned = lambda device, error: "device is lost" in str(error)
    sys.exit(main(load=load_toy))
