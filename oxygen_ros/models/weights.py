# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint folder into a network's fused weights, checked one tensor at a time.

safetensors only. Each family has a table of our tensors and their sources in the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from oxygen_ros.models.errors import LoadInterrupted, ModelError


@dataclass(frozen=True, slots=True)
class Source:
    """Where one of our tensors comes from: checkpoint tensors, concatenated by rows.

    rows:      of each of them; (): equal parts
    plus_one:  a norm weight, stored as an offset from one
    kernel:    sizes behind the first of a convolution kernel that we use as a matrix
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] = ()
    plus_one: bool = False
    kernel: tuple[int, ...] = ()

    def shapes(self, ours: Sequence[int]) -> list[tuple[int, ...]]:
        """The shape each of them has in a checkpoint, where our tensor's is `ours`."""
        rows = self.rows or [ours[0] // len(self.names)] * len(self.names)
        return [(n, *(self.kernel or ours[1:])) for n in rows]


@dataclass(frozen=True, slots=True)
class Layout:
    """How checkpoints of a family are laid out.

    family:   its name, for messages
    sources:  our tensor names with their sources
    prefix:   in front of some checkpoints' tensor names; left out
    tied:     (tensor, the one that replaces it where a file lacks it)
    unused:   tensors of real checkpoints that nothing reads
    endings:  of further such tensors' names
    """

    family: str
    sources: Mapping[str, Source]
    prefix: str = ""
    tied: tuple[str, str] = ("", "")
    unused: Collection[str] = ()
    endings: tuple[str, ...] = ()


class _Files:
    """The tensors of a folder's safetensors files, by their names without the layout's prefix."""

    def __init__(self, folder: Path, layout: Layout, stack: ExitStack) -> None:
        self.folder = folder
        self.family = layout.family
        self.tensors: dict[str, tuple[Any, str]] = {}  # name -> reader, name in the file
        stands_in: dict[str, Path] = {}
        files = sorted(folder.glob("model*.safetensors"))
        if not files:
            raise ModelError(
                f"{folder}: no model.safetensors (other formats are not read: convert them first)"
            )
        for file in files:
            try:
                reader = stack.enter_context(safe_open(file, "pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{file} cannot be read as safetensors: {error}; copy or download it again"
                ) from None
            for key in reader.keys():  # noqa: SIM118 - a reader is no mapping
                name = key.removeprefix(layout.prefix)
                if name in stands_in:
                    raise ModelError(
                        f"{folder}: tensor {name} stands in {stands_in[name].name} and again in {file.name}: "
                        "keep the files of one checkpoint"
                    )
                stands_in[name] = file
                self.tensors[name] = (reader, key)
        table, head = layout.tied
        if table not in self.tensors and head in self.tensors:
            self.tensors[table] = self.tensors[head]

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise ModelError(
                f"{self.folder}: tensor {name} is missing: not a {self.family} checkpoint, or of other depth"
            )
        reader, key = self.tensors[name]
        return tuple(reader.get_slice(key).get_shape())

    def read(
        self, source: Source, ours: Sequence[int], device: torch.device, dtype: torch.dtype
    ) -> torch.Tensor:
        """One of our tensors, of shape `ours`."""
        shapes = dict(zip(source.names, source.shapes(ours), strict=True))
        for name, shape in shapes.items():
            found = self.shape(name)
            if found != shape:
                raise ModelError(
                    f"{self.folder}: {name} has shape {list(found)}, config.json needs {list(shape)}"
                )
        parts = [self._read_part(name, source, device, dtype) for name in shapes]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def _read_part(self, name: str, source: Source, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        reader, key = self.tensors[name]
        part: torch.Tensor = reader.get_tensor(key)
        if not part.is_floating_point():
            raise ModelError(f"{self.folder}: {name} is {part.dtype}: quantized checkpoints are not read")
        part = part.flatten(1) if source.kernel else part
        # One is added in float32: in bfloat16 a small offset would vanish beside it.
        part = part.float() + 1 if source.plus_one else part
        part = part.to(device, dtype)
        # The sum of finite weights is finite: one pass, no second tensor.
        if not part.sum(dtype=torch.float32).isfinite():
            raise ModelError(
                f"{self.folder}: {name} holds numbers that are not finite; copy or download it again"
            )
        return part


def read_weights(
    network: nn.Module,
    folder: Path,
    layout: Layout,
    device: torch.device,
    dtype: torch.dtype,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Read a checkpoint folder's weights into a network made on the meta device, one tensor at a time,
    straight into `dtype` on `device`.

    Raises ModelError naming the tensor that is missing, unknown or of another shape; LoadInterrupted
    when should_stop() turns true.
    """
    state: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        files = _Files(folder, layout, stack)
        known = {name for source in layout.sources.values() for name in source.names}
        known |= {*layout.unused, *layout.tied}
        unknown = [n for n in files.tensors if n not in known and not n.endswith(layout.endings)]
        if unknown:
            raise ModelError(
                f"{folder}: tensor {unknown[0]} is no part of this {layout.family} network "
                f"({len(unknown)} such)"
            )
        for ours, parameter in network.state_dict().items():
            if should_stop is not None and should_stop():
                raise LoadInterrupted(f"loading {folder} was stopped")
            state[ours] = files.read(layout.sources[ours], parameter.shape, device, dtype)
    network.load_state_dict(state, assign=True)
    network.requires_grad_(False)


def write_weights(network: nn.Module, file: Path, layout: Layout, dtype: torch.dtype) -> None:
    """The inverse of `read_weights`."""
    save_file(dict(_unfuse(network, layout, dtype)), file)
    file.chmod(0o644)  # the library makes it readable by the owner alone


def _unfuse(network: nn.Module, layout: Layout, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    state = network.state_dict()
    for ours, source in layout.sources.items():
        shapes = source.shapes(state[ours].shape)
        parts = state[ours].split([shape[0] for shape in shapes])
        for name, shape, part in zip(source.names, shapes, parts, strict=True):
            part = part.float() - 1 if source.plus_one else part
            yield name, part.reshape(shape).to(dtype).contiguous()
