# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""A model with faults on order, and an oxygen_node that loads it.

No test. Run as a program it is oxygen_node with `load_toy` for `load_model`. The model's folder holds
toy.yaml:

    load_seconds, fail_load (once, with an unexpected error)
    step_seconds (of one decode step), denoise_seconds, first_seconds (of the very first chunk)
    fail_ticks (denoise raises), lost_ticks (as if the GPU were gone), slow_ticks (tick: seconds more)
    nan_ticks (actions are NaN), jump_ticks (actions far beyond limits), obedient (a guide is followed)
    look (of the first action joint 1..3 are red, green, blue / 255 of the top camera's first pixel, 4..6 of
        its last, the gripper the red of the wrist's first), noisy (actions are the noise)
    longest_instruction (longer ones are refused), meddle (a library that takes over logging)
    cartesian (actions are a tool's position and rotation, and a gripper), two_experts (a second one, `wrist`)
    clock_file (seconds in it by which the system's clock was set forward)

Ticks are counted from the end of the warm-up.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# As bin/oxygen_node does, before any library starts a thread that would take the signal.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from oxygen_ros.actions import ActionComponent, ActionSpace, ComponentKind, joint_space
from oxygen_ros.models import Capacity, Guide, LoadInterrupted, Model, ModelError, ModelSpec, Prefix, Rows
from oxygen_ros.models.interface import ExpertSpec
from oxygen_ros.observation import Observation

JOINTS = ("joint1", "joint2", "joint3", "joint4", "joint5", "joint6", "gripper")
END, VOCABULARY = 0, 128
TOOL = ActionSpace(
    (
        ActionComponent("tool", ComponentKind.CARTESIAN_POSITION, "m", frame="base"),
        ActionComponent("tool", ComponentKind.ROTATION, "rad", frame="base", rotation="axis_angle"),
        ActionComponent("hand", ComponentKind.GRIPPER, "1"),
    )
)
WRIST = ExpertSpec("wrist", joint_space(JOINTS[4:6]), horizon=5, width=2, step=0.1, denoise_steps=1)


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
            experts=(
                ExpertSpec(
                    name="tool" if orders.get("cartesian") else "arm",
                    action_space=TOOL if orders.get("cartesian") else joint_space(JOINTS),
                    horizon=int(orders.get("horizon", 20)),
                    width=8,
                    step=0.05,
                    denoise_steps=1,
                ),
                *[WRIST] * bool(orders.get("two_experts")),
            ),
            eos_ids=(END,),
            feedback=("subtask", "memory"),
        )
        self._tick = -warmup_ticks
        self._has_begun = False

    def allocate(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._states = np.zeros((capacity.prefixes, 2, len(JOINTS)))

    def check_instruction(self, instruction: str) -> None:
        most = self.orders.get("longest_instruction", 1000)
        if len(instruction) > most:
            raise ValueError(f"the instruction has {len(instruction)} letters, {most} fit: shorten it")

    def process(self, observation: Observation) -> NDArray[np.float64]:
        if not self.orders.get("look"):
            return np.stack([observation.joints, observation.joints])
        top, wrist = observation.images["top"], observation.images["wrist"]
        seen = np.array([*top[0, 0], *top[-1, -1], wrist[0, 0, 0]], np.float64) / 255
        return np.stack([seen, observation.joints])

    def encode(self, inputs: Any, slot: int) -> Prefix:
        self._states[slot] = inputs
        return Prefix(8, 8)

    def denoise(
        self, slot: int, noise: torch.Tensor, guide: Guide | None = None, expert: int = 0
    ) -> torch.Tensor:
        if expert == 1:
            return torch.from_numpy(self._states[slot, 1, 4:6]).float().expand(5, 2)
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
        actions = torch.zeros_like(noise)
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
        logits = torch.zeros(rows.wanted, VOCABULARY)
        for row, token in enumerate(tokens):
            follows = token + 1 if ord("a") <= token < ord("g") else END if token == ord("g") else ord("a")
            logits[row, follows] = 1.0
        return logits

    def unprocess(
        self, actions: torch.Tensor, observation: Observation, expert: int = 0
    ) -> NDArray[np.float64]:
        return actions[:, : self.spec.experts[expert].action_space.size].numpy().astype(np.float64)

    def normalize(
        self, actions: NDArray[np.float64], observation: Observation, expert: int = 0
    ) -> torch.Tensor:
        padded = torch.zeros(self.spec.experts[expert].horizon, self.spec.experts[expert].width)
        padded[:, : actions.shape[1]] = torch.from_numpy(actions)
        return padded

    def tokenize(self, template: str, words: Mapping[str, str] | None = None) -> list[int]:
        for name, said in (words or {}).items():
            template = template.replace(f"{{{name}}}", said)
        return [min(ord(letter), VOCABULARY - 1) for letter in template]

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
    """From now on the node's ROS time is the system's plus the seconds in a file, as if it was set."""
    from oxygen_ros.node.clocks import Clocks

    ahead_ns = 0
    now_ns = Clocks.now_ns

    def read() -> None:
        nonlocal ahead_ns
        while True:
            if words := file.read_text():
                ahead_ns = int(float(words) * 1e9)
            time.sleep(0.01)

    Clocks.now_ns = lambda self: now_ns(self) + ahead_ns  # type: ignore[method-assign]
    threading.Thread(target=read, daemon=True).start()


if __name__ == "__main__":
    from oxygen_ros.node import worker
    from oxygen_ros.node.main import main

    # There is no device to lose on a CPU; what happens when one is lost is tried all the same.
    worker.is_device_lost = lambda device, error: "device is lost" in str(error)
    sys.exit(main(load=load_toy))
