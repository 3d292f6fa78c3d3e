# SPDX-License-Identifier: Apache-2.0
"""Compares isolated execution with this engine, over the same kernels: only the scheduling differs.

In reading order: `preset`, `families` and `workload` (what is run), `predict` (what it should cost), `timing`
and `engine_run` (one engine, one tick), `components` and `floors` (what its parts cost alone), `comparison`
(all modes in turn), `results` (the figures and their file), `device` (the machine), `real_time` (ticks with a
deadline), `setup`, `options`, `stopping`, `report`, `draw` and `main` (the command `oxygen_bench`).

Programs of their own: `overhead` (the engine's own time), `parallel` (two processes on one device), `latency`
(what the node adds to its model's time; the only one that needs ROS).

Any family is measured through the model interface and its `ModelPreset`. Code that needs a family's internals
is in a folder of its own: `pi05` has its presets, its ablation and the checks of scripts/gpu_check.
"""
