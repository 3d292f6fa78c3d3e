# SPDX-License-Identifier: Apache-2.0
"""Components at every row bucket, their floors and the device's limits: measured once, before the cells.

Here lives the table that explains the device; the components a cell's prediction uses are measured again
beside the cell.
"""

from __future__ import annotations

from typing import Any

from oxygen_ros.bench.components import Components
from oxygen_ros.bench.device import measure_limits
from oxygen_ros.bench.floor import (
    decode_products,
    denoise_products,
    flops,
    prefill_products,
    time_products,
    weight_bytes,
)
from oxygen_ros.bench.predict import Costs
from oxygen_ros.bench.setup import Shared
from oxygen_ros.bench.workload import MAX_ROWS
from oxygen_ros.models.interface import ROW_BUCKETS, Capacity
from oxygen_ros.models.loading import DTYPES


def measure_baseline(shared: Shared, dtype: str, *, repeats: int = 3) -> tuple[dict[str, Any], Costs]:
    """The JSON's `components` entry of one dtype, and the costs a k is recommended from.

    Decode steps have one row a text, `requests` texts a frame, as in steady ticks.
    """
    setup, network = shared.setup, shared.networks[dtype]
    per_frame = setup.requests
    frames = max(2, -(-MAX_ROWS // per_frame))
    capacity = Capacity(frames, MAX_ROWS, setup.suffix_tokens + max(setup.n), MAX_ROWS)
    components = Components(shared.model(dtype), capacity, shared.scene.at(0), shared.clock)

    def median(work: Any) -> float:
        work()  # the first call is slower
        return float(sorted(work() for _ in range(repeats))[repeats // 2])

    shapes = [(rows, max(1, rows // per_frame)) for rows in ROW_BUCKETS]
    costs = Costs(
        median(components.prefill),
        median(components.denoise),
        {shape: median(lambda shape=shape: components.decode(shape)) for shape in shapes},
    )
    limits = measure_limits(shared.device, DTYPES[dtype], shared.clock)
    prefill = prefill_products(network, len(shared.robot.cameras), shared.scene.prefix_tokens)
    denoise = denoise_products(network, network.config.denoise_steps)
    decode = {rows: decode_products(network, rows) for rows in ROW_BUCKETS}

    def part(seconds: float, products: Any) -> dict[str, float]:
        floor = time_products(products, repeats, shared.clock)
        return {
            "ms": seconds * 1e3,
            "linear_layers_ms": floor * 1e3,
            "over_linear_layers": seconds / floor,
            "fraction_of_gemm": flops(products) / seconds / limits["gemm_flops_per_s"],
            "fraction_of_bandwidth": weight_bytes(products) / seconds / limits["read_bytes_per_s"],
        }

    return {
        "dtype": dtype,
        "limits": limits,
        "prefix_tokens": shared.scene.prefix_tokens,
        "prefill": part(costs.prefill, prefill),
        "denoise": part(costs.denoise, denoise),
        "decode": {
            str(rows): part(costs.decode[shape], decode[rows])
            for rows, shape in zip(ROW_BUCKETS, shapes, strict=True)
        },
    }, costs
