# SPDX-License-Identifier: Apache-2.0
"""Whether the node can be trusted: `make soak` (faults for as long as told), `make storm` (starts and stops).

Processes around a real node: these modules use ROS as a robot's drivers do, and import nothing of the node.
In reading order:

    faults       the kinds of faults, and a seeded sequence of them
    recording    the pictures and joints that are played
    driver       a process that plays the demo robot's cameras and joints, well or badly, and tells it
    ledger       what was published when; whether a chunk may come of it
    observer     what the node says: chunks, ticks, diagnostics
    processes    starting, feeding, signalling, measuring and ending processes
    injector     doing a fault, and undoing it
    tally        the figures of a run, and whether they are good enough
    soak         the run
    storm        random starts and stops in every lifecycle state

`ledger`, `faults` and `tally` are plain Python.
"""
