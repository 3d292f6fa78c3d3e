# SPDX-License-Identifier: Apache-2.0
"""The simulated arm that puts blocks into a box, for people without a robot.

Modules, from the bottom up; only `bridge` and `parameters` know ROS:

geometry     sizes of the arm, the table, the box (the one place they are written down)
task         the instruction, as a value
scene        the MuJoCo model (MJCF text) made from `geometry`
state        what the simulator knows at one instant, as a plain immutable value
physics      MuJoCo, imported without its graphics
render       an off-screen picture, or an error that says what to install
world        the simulation: seed, step, state, pictures
kinematics   joints to gripper pose and back
motion       from a goal to the next joint targets
prediction   the state a moment later, without physics
clearance    room around blocks
expert       the scripted policy, a pure function of `state`
words        what the robot is doing and what it should remember, in a closed grammar
trajectory   joint trajectories spliced in time, numpy only
pacing       simulated time against the wall clock
description  the robot as a URDF, for RViz and for the limits of its joints
parameters   the parameters of the ROS node
bridge       the ROS node `oxygen_sim`
"""
