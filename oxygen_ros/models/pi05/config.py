# SPDX-License-Identifier: Apache-2.0
"""Sizes and conventions of a pi0.5 network, its presets, and how checkpoint folders state them.

Here lives reading `config.json`; weights are `weights`, prompts and statistics are `processor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oxygen_ros.models.errors import ModelError


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
                  once (lerobot). A property of the code a checkpoint was made for.
    step:         seconds between two actions
    joints:       joint names of the state; empty when the checkpoint does not say
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
    def max_prefix(self) -> int:
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
        vision=VisionConfig(width=96, depth=3, mlp_dim=384, heads=4, image_size=80, patch_size=16),
        backbone=StreamConfig(width=128, depth=4, mlp_dim=384, heads=4, head_dim=32),
        expert=StreamConfig(width=96, depth=4, mlp_dim=192, heads=4, head_dim=32),
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


def from_dimensions(raw: Mapping[str, Any]) -> Pi05Config:
    """Config from written-out dimensions; see the demo checkpoint's config.json for all entries."""
    v = raw["vision"]
    special = raw.get("special_ids", {})
    time = raw.get("time_embedding", {})
    return Pi05Config(
        vision=VisionConfig(
            width=v["hidden_size"],
            depth=v["num_hidden_layers"],
            mlp_dim=v["intermediate_size"],
            heads=v["num_attention_heads"],
            image_size=v["image_size"],
            patch_size=v["patch_size"],
            eps=v.get("layer_norm_eps", 1e-6),
        ),
        backbone=_stream(raw["prefix_llm"]),
        expert=_stream(raw["action_expert"]),
        vocabulary=raw["prefix_llm"]["vocab_size"],
        cameras=tuple(raw["cameras_in_order"]),
        horizon=raw["action_horizon"],
        action_dim=raw["action_dim"],
        max_prompt=raw["max_token_len"],
        denoise_steps=raw["default_num_steps"],
        time_rule=raw.get("time_rule", "accumulated"),
        min_period=time.get("min_period", 0.004),
        max_period=time.get("max_period", 4.0),
        rope_base=raw["prefix_llm"].get("rope_theta", 10000.0),
        pad_id=special.get("pad", 0),
        eos_id=special.get("eos", 1),
        bos_id=special.get("bos", 2),
        step=raw.get("step", 0.02),
        joints=tuple(raw.get("joints", ())),
    )


def to_dimensions(config: Pi05Config) -> dict[str, Any]:
    """The inverse of `from_dimensions`, for writing a checkpoint folder."""
    v = config.vision

    def stream(s: StreamConfig) -> dict[str, Any]:
        return {
            "width": s.width, "depth": s.depth, "mlp_dim": s.mlp_dim, "num_heads": s.heads,
            "num_kv_heads": s.kv_heads, "head_dim": s.head_dim, "rms_norm_eps": s.eps,
        }  # fmt: skip

    return {
        "model_type": "pi05",
        "prefix_llm": stream(config.backbone)
        | {"vocab_size": config.vocabulary, "rope_theta": config.rope_base},
        "action_expert": stream(config.expert),
        "vision": {
            "hidden_size": v.width, "num_hidden_layers": v.depth, "intermediate_size": v.mlp_dim,
            "num_attention_heads": v.heads, "image_size": v.image_size, "patch_size": v.patch_size,
            "layer_norm_eps": v.eps,
        },
        "cameras_in_order": list(config.cameras),
        "action_horizon": config.horizon,
        "action_dim": config.action_dim,
        "max_token_len": config.max_prompt,
        "default_num_steps": config.denoise_steps,
        "time_rule": config.time_rule,
        "time_embedding": {"min_period": config.min_period, "max_period": config.max_period},
        "special_ids": {"pad": config.pad_id, "eos": config.eos_id, "bos": config.bos_id},
        "step": config.step,
        "joints": list(config.joints),
    }  # fmt: skip


def _stream(raw: Mapping[str, Any]) -> StreamConfig:
    return StreamConfig(
        width=raw["width"],
        depth=raw["depth"],
        mlp_dim=raw["mlp_dim"],
        heads=raw["num_heads"],
        kv_heads=raw["num_kv_heads"],
        head_dim=raw["head_dim"],
        eps=raw.get("rms_norm_eps", 1e-6),
    )


def camera_keys(raw: Mapping[str, Any]) -> list[str]:
    """Image features of lerobot's config.json in its order, less those that lerobot itself leaves empty."""
    empty = {f"observation.images.empty_camera_{i}" for i in range(raw.get("empty_cameras", 0))}
    features = raw["input_features"].items()
    return [key for key, feature in features if feature["type"] == "VISUAL" and key not in empty]


def name_camera(key: str) -> str:
    """The camera's name in a feature's key."""
    return key.removeprefix("observation.").removeprefix("images.")


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
