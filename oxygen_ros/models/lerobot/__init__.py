# SPDX-License-Identifier: Apache-2.0
"""The files beside the weights in a lerobot policy folder: pipelines, normalization, names of the robot."""
