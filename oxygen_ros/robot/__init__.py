# SPDX-License-Identifier: Apache-2.0
"""The content of messages to observations, and chunks to trajectories, in numpy.

Nothing in this package imports rclpy or torch: the live node and a reader of bags call the same code with the
plain contents of their messages. docs/architecture.md has a line for each module.
"""
