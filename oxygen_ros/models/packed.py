# SPDX-License-Identifier: Apache-2.0
"""Linear layers for a CPU: weights laid out once as oneDNN's kernels read them.

`F.linear` lays weights out in every call, a large part of a product of few rows, as all of a robot's are.
With weights laid out before, the activation and the product with `up` are applied to the float32 sums in
registers: one rounding instead of three. The plain weights are not kept, so that there is no second copy; a
packed network can only be run. `oxygen_bench --ablate` measures the gain.

The operators are torch's own, made for its compiler, and have no public name. So each layer is compared with
the plain one, and stays plain where a build lacks them or results differ.
"""

from __future__ import annotations

import torch
from torch import nn

from oxygen_ros.models.layers import GateUpLinear, GeluLinear

# Rows that weights are laid out for and layers are tried with; the layout serves other numbers as well.
_ROWS = 64
# In float32 `F.linear` is faster for weights of at most so many numbers, stored by input.
_LARGEST_BY_INPUT = 2**20
# Largest difference of a packed product from the plain one, relative to the largest number: roundings alone.
_CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


class PackedLinear(nn.Module):
    """A linear layer, with or without an activation behind it; not for training."""

    _bias: torch.Tensor | None
    _weight: torch.Tensor

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, activation: str = "none"
    ) -> None:
        """activation: "none", "gelu" (its tanh form) or "swish" (SiLU)"""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # Buffers, so that they count as the network's memory; not saved.
        self.register_buffer("_bias", None if bias is None else bias.detach(), persistent=False)
        self.register_buffer("_weight", _lay_out(weight), persistent=False)
        self._tails: dict[int, torch.Tensor] = {}
        self._activation = activation
        self._linear = torch.ops.mkldnn._linear_pointwise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._activation == "none":
            return self.plain(x)
        kind = "tanh" if self._activation == "gelu" else ""
        product: torch.Tensor = self._linear(
            x.contiguous(), self._weight, self._bias, self._activation, [], kind
        )
        return product

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        """Without the activation."""
        product: torch.Tensor = self._linear(x.contiguous(), self._weight, self._bias, "none", [], "")
        return product

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The product, times `other` element by element."""
        product: torch.Tensor = self._linear.binary(x.contiguous(), other, self._weight, self._bias, "mul")
        return product

    def tail(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """Only the outputs from `first` on; laid out at the first call."""
        if first not in self._tails:
            self._tails[first] = _lay_out(self.weight[first:])
        bias = None if self._bias is None else self._bias[first:]
        product: torch.Tensor = self._linear(x.contiguous(), self._tails[first], bias, "none", [], "")
        return product

    @property
    def weight(self) -> torch.Tensor:
        """[out, in], laid out plainly: a copy."""
        return self._weight.to_dense()


class PackedGateUp(nn.Module):
    """Gate and up of a gated MLP, each by itself; see GateUpLinear."""

    def __init__(self, weight: torch.Tensor, *, silu: bool = False) -> None:
        super().__init__()
        gate, up = weight.chunk(2)
        self.gate = PackedLinear(gate, activation="swish" if silu else "gelu")
        self.up = PackedLinear(up)
        self.in_features = self.gate.in_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.gate.plain(x), self.up(x)), dim=-1)

    def activated(self, x: torch.Tensor) -> torch.Tensor:
        """activation(gate) * up"""
        return self.up.times(x, self.gate(x))

    @property
    def weight(self) -> torch.Tensor:
        """[both, in], laid out plainly: a copy."""
        return torch.cat((self.gate.weight, self.up.weight))


@torch.no_grad()
def pack(network: nn.Module) -> str:
    """Replace the network's linear layers by packed ones where that is faster: on CPUs, layer by layer.

    Returns why it is slower than necessary, else "". On GPUs nothing is done.
    """
    lacks = False
    # No reference to a replaced layer is kept: its weights are freed before the next ones are copied.
    for parent in [module for module in network.modules() if not isinstance(module, nn.Linear)]:
        for name in [name for name, _ in parent.named_children()]:
            layer = parent.get_submodule(name)
            if not isinstance(layer, nn.Linear) or layer.weight.device.type != "cpu":
                continue
            if layer.weight.dtype == torch.float32 and layer.weight.numel() <= _LARGEST_BY_INPUT:
                layer.weight.data = layer.weight.data.mT.contiguous().mT
                continue
            packed = _try_packing(layer)
            if packed is not None:
                setattr(parent, name, packed)
            elif layer.weight.dtype == torch.bfloat16:
                lacks = True
    if not lacks:
        return ""
    return (
        f"torch {torch.__version__} on this CPU lacks oneDNN's bfloat16 products: action chunks take up to "
        "twice as long; use another build of torch, or dtype float32"
    )


def is_packed(network: nn.Module) -> bool:
    """Whether any of its layers is."""
    return any(isinstance(layer, PackedLinear) for layer in network.modules())


def _lay_out(weight: torch.Tensor) -> torch.Tensor:
    laid_out: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
    return laid_out


def _try_packing(layer: nn.Linear) -> PackedLinear | PackedGateUp | None:
    dtype = layer.weight.dtype
    x = torch.linspace(-1, 1, _ROWS * layer.in_features).to(dtype).view(_ROWS, -1)
    packed: PackedLinear | PackedGateUp
    try:
        if isinstance(layer, GateUpLinear):
            packed = PackedGateUp(layer.weight, silu=layer.silu)
            ours, plain = packed.activated(x), layer.activated(x)
        else:
            activation = "gelu" if isinstance(layer, GeluLinear) else "none"
            packed = PackedLinear(layer.weight, layer.bias, activation=activation)
            ours, plain = packed(x), layer(x)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    is_close = (ours - plain).abs().max() <= _CLOSE[dtype] * plain.abs().max()  # a NaN is not
    return packed if is_close else None
