# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node `oxygen`: ROS in, ROS out. docs/architecture.md has a line for each module."""
