# SPDX-License-Identifier: Apache-2.0
"""Sizes and conventions of a pi0.5 network, its presets, and their entries in `config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.lerobot.policy import camera_keys, name_camera


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """SigLIP tower: square images, no class token."""

    width: int = 1152
    depth: int = 27
    mlp_dim: int = 4304
    heads: int = 16
    image_size: int = 224
    patch_size: int = 14
    eps: float = 1e-6

    @property
    def tokens(self) -> int:
        """Tokens of one camera."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """One Gemma stream: the backbone or the action expert."""

    width: int
    depth: int = 18
    mlp_dim: int = 16384
    heads: int = 8
    kv_heads: int = 1
    head_dim: int = 256
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class Pi05Config:
    """Everything the network's shape and arithmetic depend on.

    max_prompt:   most prompt tokens of a prefix
    time_rule:    "accumulated": t is summed up in float32 (openpi); "exact": 1 + k * dt is rounded
                  once (lerobot), depending on the code that trained a checkpoint
    step:         seconds between two actions
    joints:       joint names of the state; empty when the checkpoint names none
    """

    vision: VisionConfig = field(default_factory=VisionConfig)
    backbone: StreamConfig = field(default_factory=lambda: StreamConfig(width=2048))
    expert: StreamConfig = field(default_factory=lambda: StreamConfig(width=1024, mlp_dim=4096))
    vocabulary: int = 257152
    cameras: tuple[str, ...] = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    horizon: int = 50
    action_dim: int = 32
    max_prompt: int = 200
    denoise_steps: int = 10
    time_rule: str = "accumulated"
    min_period: float = 0.004
    max_period: float = 4.0
    rope_base: float = 10000.0
    pad_id: int = 0
    eos_id: int = 1
    bos_id: int = 2
    step: float = 0.02
    joints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_numbers()
        b, e, v = self.backbone, self.expert, self.vision
        if (b.depth, b.heads, b.kv_heads, b.head_dim) != (e.depth, e.heads, e.kv_heads, e.head_dim):
            raise ModelError(
                "backbone and expert share attention layer by layer: depth, heads, kv_heads and head_dim "
                f"must be equal, got {(b.depth, b.heads, b.kv_heads, b.head_dim)} and "
                f"{(e.depth, e.heads, e.kv_heads, e.head_dim)}"
            )
        if v.image_size % v.patch_size or v.width % v.heads:
            raise ModelError(
                f"vision: image_size {v.image_size} must be a multiple of patch_size {v.patch_size}, "
                f"width {v.width} of heads {v.heads}"
            )
        if self.time_rule not in ("accumulated", "exact"):
            raise ModelError(f'time_rule must be "accumulated" or "exact", got "{self.time_rule}"')

    def _check_numbers(self) -> None:
        whole = {
            f"{part}.{name}": getattr(sizes, name)
            for part, sizes in (("vision", self.vision), ("backbone", self.backbone), ("expert", self.expert))
            for name in sizes.__slots__
            if name != "eps"
        }
        for name in ("vocabulary", "horizon", "action_dim", "max_prompt", "denoise_steps"):
            whole[name] = getattr(self, name)
        for name, value in whole.items():
            if not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} must be a whole number of 1 or more, got {value!r}")
        for name in ("step", "min_period", "max_period", "rope_base"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ModelError(f"{name} must be a positive number, got {value!r}")
        for name in ("pad_id", "eos_id", "bos_id"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < self.vocabulary:
                raise ModelError(f"{name} {value!r} is no id of a vocabulary of {self.vocabulary}")
        for what, names in (("camera", self.cameras), ("joint", self.joints)):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ModelError(f'{what} "{twice[0]}" is named twice in {list(names)}')
        b, width = self.backbone, self.expert.width
        if b.heads % b.kv_heads or b.head_dim % 2 or width % 2:
            raise ModelError(
                f"heads {b.heads} must be a multiple of kv_heads {b.kv_heads}; head_dim {b.head_dim} and the "
                f"expert's width {width} must be even"
            )

    @property
    def special_ids(self) -> set[int]:
        return {self.pad_id, self.bos_id, self.eos_id}

    @property
    def max_prefix(self) -> int:
        """Most tokens of a prefix."""
        return len(self.cameras) * self.vision.tokens + self.max_prompt


PRESETS: Mapping[str, Pi05Config] = {
    "pi05": Pi05Config(),
    "pi05_mini": Pi05Config(
        vision=VisionConfig(width=256, depth=4, mlp_dim=1024, heads=4, image_size=64, patch_size=16),
        backbone=StreamConfig(width=1024, depth=8, mlp_dim=4096, heads=8, head_dim=128),
        expert=StreamConfig(width=512, depth=8, mlp_dim=1024, heads=8, head_dim=128),
        vocabulary=8192,
    ),
    "demo": Pi05Config(
        vision=VisionConfig(width=64, depth=5, mlp_dim=192, heads=4, image_size=80, patch_size=16),
        backbone=StreamConfig(width=96, depth=4, mlp_dim=192, heads=4, head_dim=24),
        expert=StreamConfig(width=64, depth=4, mlp_dim=128, heads=4, head_dim=24),
        vocabulary=768,
        cameras=("top", "wrist"),
        horizon=16,
        action_dim=7,
        max_prompt=64,
        denoise_steps=5,
        step=0.1,
        joints=("joint1", "joint2", "joint3", "joint4", "joint5", "joint6", "gripper"),
    ),
}

# The names lerobot and openpi give to Gemma's sizes.
_GEMMA = {
    "gemma_2b": StreamConfig(width=2048, mlp_dim=16384),
    "gemma_300m": StreamConfig(width=1024, mlp_dim=4096),
}


def read_config(folder: Path, raw: Mapping[str, Any]) -> Pi05Config:
    """The network's sizes from the content of a checkpoint folder's `config.json`.

    Two forms are known: dimensions written out ("model_type": "pi05"), and lerobot's policy
    config ("type": "pi05"), which names Gemma variants.
    """
    try:
        return _from_lerobot(raw) if raw.get("type") == "pi05" else from_dimensions(raw)
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'}: entry {error} is missing") from None
    except (ModelError, TypeError, AttributeError) as error:  # the last two: a list or number for an object
        raise ModelError(f"{folder / 'config.json'}: {error}") from None


# Our names -> entries of config.json; those of a stream stand in "prefix_llm" and "action_expert".
_VISION = {
    "width": "hidden_size", "depth": "num_hidden_layers", "mlp_dim": "intermediate_size",
    "heads": "num_attention_heads", "image_size": "image_size", "patch_size": "patch_size",
    "eps": "layer_norm_eps",
}  # fmt: skip
_STREAM = {
    "width": "width", "depth": "depth", "mlp_dim": "mlp_dim", "heads": "num_heads",
    "kv_heads": "num_kv_heads", "head_dim": "head_dim", "eps": "rms_norm_eps",
}  # fmt: skip
_TOP = {
    "cameras": "cameras_in_order", "horizon": "action_horizon", "action_dim": "action_dim",
    "max_prompt": "max_token_len", "denoise_steps": "default_num_steps", "time_rule": "time_rule",
    "step": "step", "joints": "joints",
}  # fmt: skip
_PARTS = {
    "prefix_llm": {"vocabulary": "vocab_size", "rope_base": "rope_theta"},
    "time_embedding": {"min_period": "min_period", "max_period": "max_period"},
    "special_ids": {"pad_id": "pad", "eos_id": "eos", "bos_id": "bos"},
}
_OPTIONAL = {
    "eps", "time_rule", "step", "joints", "rope_base", "min_period", "max_period",
    "pad_id", "eos_id", "bos_id",
}  # fmt: skip


def from_dimensions(raw: Mapping[str, Any]) -> Pi05Config:
    """Config from written-out dimensions; see the demo checkpoint's config.json for all entries."""
    streams = [StreamConfig(**_pick(raw[part], _STREAM)) for part in ("prefix_llm", "action_expert")]
    entries = _pick(raw, _TOP)
    for part, names in _PARTS.items():
        entries |= _pick(raw.get(part, {}), names)
    for name in ("cameras", "joints"):
        entries[name] = tuple(entries.get(name, ()))
    return Pi05Config(
        vision=VisionConfig(**_pick(raw["vision"], _VISION)),
        backbone=streams[0],
        expert=streams[1],
        **entries,
    )


def _pick(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The entries of our names. Raises KeyError for one that is missing and has no default."""
    return {ours: raw[entry] for ours, entry in names.items() if entry in raw or ours not in _OPTIONAL}


def to_dimensions(config: Pi05Config) -> dict[str, Any]:
    """The inverse of `from_dimensions`, for writing a checkpoint folder."""

    def write(sizes: Any, names: Mapping[str, str]) -> dict[str, Any]:
        found = {entry: getattr(sizes, ours) for ours, entry in names.items()}
        return {entry: list(x) if isinstance(x, tuple) else x for entry, x in found.items()}

    parts = {part: write(config, names) for part, names in _PARTS.items()}
    return {
        "model_type": "pi05",
        **parts,
        "prefix_llm": write(config.backbone, _STREAM) | parts["prefix_llm"],
        "action_expert": write(config.expert, _STREAM),
        "vision": write(config.vision, _VISION),
        **write(config, _TOP),
    }


def _from_lerobot(raw: Mapping[str, Any]) -> Pi05Config:
    streams = {}
    for entry in ("paligemma_variant", "action_expert_variant"):
        if raw[entry] not in _GEMMA:
            raise ModelError(f'{entry} must be one of {", ".join(_GEMMA)}, got "{raw[entry]}"')
        streams[entry] = _GEMMA[raw[entry]]
    height, width = raw["image_resolution"]
    if height != width:
        raise ModelError(f"image_resolution must be square, got {height} x {width}")
    default = PRESETS["pi05"]
    return replace(
        default,
        vision=replace(default.vision, image_size=height),
        backbone=streams["paligemma_variant"],
        expert=streams["action_expert_variant"],
        cameras=tuple(name_camera(key) for key in camera_keys(raw)),
        horizon=raw["chunk_size"],
        action_dim=raw["max_action_dim"],
        max_prompt=raw["tokenizer_max_length"],
        denoise_steps=raw["num_inference_steps"],
        min_period=raw["min_period"],
        max_period=raw["max_period"],
        time_rule="exact",
    )
