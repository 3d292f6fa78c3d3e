# SPDX-License-Identifier: Apache-2.0
"""Isolated execution against ours, with the same kernels on both sides: only the scheduling differs.

In reading order: `robots` and `workload` (what is run), `predict` (what it should cost), `lane` (one
engine, one tick), `components` and `floor` (what its parts cost alone), `cell` (all modes in turn),
`results`, `baseline` and `record` (the figures), `device` and `energy` (the machine), `bursts` (ticks in
real time), `setup`, `options`, `stopping`, `report`, `draw` and `main` (the command `oxygen_bench`).

Programs of their own: `parallel` (two processes on one device), `gpu` (the checks of scripts/gpu_check),
`latency` (what the node adds to its model's time).
"""
