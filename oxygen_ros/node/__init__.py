# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node `oxygen`: ROS in, ROS out. Beside it only the simulator's bridge and demo import rclpy.

In reading order:

    main.py             the process: signals, executor, exit code
    oxygen_node.py      the node: what happens in each transition
    managed.py          transitions that do not block the executor
    parameters.py       the table of parameters; the manual is made from it
    declarations.py     the table on a node: overrides, checks, changes at run time
    settings.py         checked values -> one typed object
    preparation.py      load, check, size, warm up; runs in a thread of configure
    warmup.py           full ticks over a made-up observation
    inputs.py           subscriptions; they only store
    bursts.py           one whose messages come fast
    pace.py             when the next tick is due
    timekeeper.py       ROS time, sim time and the steady clock, and their jumps
    assembly.py         what one activation is made of
    worker.py           the one thread that samples, infers and publishes
    housekeeping.py     garbage collection between ticks
    watch.py            what the worker sees, in words
    watchdog.py         how long the worker has not come back
    tick.py             one tick: decode, run, publish
    outputs.py          publishers and messages
    commands.py         trajectories to the controller, and the hold
    poison.py           whether an error has cost the process its GPU
    qos.py              profiles, and what does not fit them
    diagnostics.py      /diagnostics
    player.py           a small bag player
    traffic.py          a robot that only sends and listens, to measure with
"""
