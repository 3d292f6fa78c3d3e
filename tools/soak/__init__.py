# SPDX-License-Identifier: Apache-2.0
"""Endurance tests: `make soak` (faults for a given time) and `make stress` (starts and stops).

Processes around a real node. They use ROS as a robot's drivers do and import nothing of the node: the judge
must not share its code. Run with PYTHONPATH=tools. In reading order:

    faults        the kinds of faults, and a seeded sequence of them
    recording     the pictures and joints that are played
    driver        a process that plays the demo robot's cameras and joints, with or without faults
    expectations  what was published when; whether a chunk may come of it
    observer      the node's chunks, ticks and diagnostics
    programs      starts the node under test and the drivers
    injector      injects a fault and undoes it
    summary       the figures of a run, and whether they are good enough
    run           the run
    stress        random starts and stops in every lifecycle state

`expectations`, `faults` and `summary` are plain Python.
"""
