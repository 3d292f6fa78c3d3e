# SPDX-License-Identifier: Apache-2.0
"""The next token from logits: greedy, or temperature and top-p with a number drawn elsewhere.

The choice is made on the logits' device. Random numbers come from `noise`.
"""

from __future__ import annotations

import numpy as np
import torch


def choose_greedy(logits: torch.Tensor) -> torch.Tensor:
    """Best token of each row: [W, vocabulary] -> int64 [W]; the lowest id wins a tie."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    # numpy's search is vectorized, torch's on CPUs is not: twenty times faster over a real vocabulary.
    if logits.dtype == torch.bfloat16:
        # The bits of numbers above zero, read as integers, are in the numbers' order: nothing to convert.
        bits = logits.view(torch.int16).numpy()
        best = bits.argmax(axis=-1)
        if (bits[np.arange(len(best)), best] > 0).all():
            return torch.from_numpy(best)
    return torch.from_numpy(logits.float().numpy().argmax(axis=-1))


def choose_sampled(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Nucleus sampling (Holtzman et al. 2020) by inverting the cumulative distribution.

    logits [W, vocabulary]; temperature (> 0), top_p and uniform (in [0, 1)) [W] -> int64 [W].
    The nucleus is the shortest list of most probable tokens whose sum reaches top_p.
    """
    probability = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    ordered, index = probability.sort(dim=-1, descending=True, stable=True)
    total = ordered.cumsum(dim=-1)
    # A token is outside when those before it already reach top_p; the first is always inside.
    outside = total - ordered >= top_p[:, None]
    outside[:, 0] = False
    kept = ordered.masked_fill(outside, 0.0).cumsum(dim=-1)
    whole = kept[:, -1:]
    # Just below 1 the product rounds to the whole, which the last token reaches whatever its share.
    target = torch.minimum(uniform[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    place = (kept <= target).sum(dim=-1, keepdim=True)
    last_inside = (~outside).sum(dim=-1, keepdim=True) - 1
    return index.gather(1, torch.minimum(place, last_inside)).squeeze(1)
