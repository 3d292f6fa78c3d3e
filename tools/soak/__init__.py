# SPDX-License-Identifier: Apache-2.0
"""Tests of endurance: `make soak` (faults for as long as told) and `make stress` (starts and stops).

Processes around a real node. They use ROS as a robot's drivers do and import nothing of the node: what judges
it must not share its code. Run with PYTHONPATH=tools. In reading order:

    faults        the kinds of faults, and a seeded sequence of them
    recording     the pictures and joints that are played
    driver        a process that plays the demo robot's cameras and joints, well or badly, and tells it
    expectations  what was published when; whether a chunk may come of it
    observer      what the node says: chunks, ticks, diagnostics
    programs      starts the node under test and the drivers
    injector      does a fault, and undoes it
    summary       the figures of a run, and whether they are good enough
    run           the run
    stress        random starts and stops in every lifecycle state

`expectations`, `faults` and `summary` are plain Python.
"""
