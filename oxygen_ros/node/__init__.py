# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node `oxygen`: ROS in, ROS out.

In reading order, first what needs no ROS:

    parameters.py       the table of parameters; the manual is made from it
    settings.py         parameter values -> typed settings
    layout.py           the robot's cameras, joints and actions as a model needs them
    preparation.py      load, check, size, warm up; runs in a thread of configure
    trigger.py          when the next tick is due
    control.py          one tick: decode, act, limit, publish, advance the text
    record.py           what one tick did
    device.py           whether an error has cost the process its GPU
    housekeeping.py     garbage collection between ticks

    main.py             the process: signals, executor, exit code
    oxygen_node.py      the node: what each transition makes, keeps and frees
    managed.py          transitions that do not block the executor
    declarations.py     the table on a node: overrides, checks, changes at run time
    inputs.py           subscriptions; they only store
    batching.py         one whose messages come fast
    clocks.py           ROS time, sim time and the steady clock, and their jumps
    worker.py           the one thread that synchronizes, ticks and publishes
    outputs.py          publishers and messages
    commands.py         trajectories to the controller, and the hold
    qos.py              profiles, and why another node's do not fit
    monitor.py          what happened, made into reports
    diagnostics.py      /diagnostics
    watchdog.py         how long the worker has not come back
"""
