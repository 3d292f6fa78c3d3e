# SPDX-License-Identifier: Apache-2.0
"""Recordings: bags of messages, and playing them back.

bags.py    reads and writes bags without a ROS installation
player.py  plays a bag into a running ROS graph
"""
