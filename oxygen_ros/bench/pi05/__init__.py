# SPDX-License-Identifier: Apache-2.0
"""pi0.5 in the benchmark: its presets, its ablation, and the comparison of a device with the CPU."""
