# SPDX-License-Identifier: Apache-2.0
"""The simulated arm that puts blocks into a box.

Modules, from the bottom up; only `bridge` and `parameters` use ROS:

geometry     sizes of the arm, the table and the box
task         the instruction, as a value
scene        the MuJoCo model (MJCF text) made from `geometry`
state        the simulator's state at one instant, as an immutable value
physics      MuJoCo, imported without its graphics
render       an off-screen picture, or an error with the packages to install
world        the simulation: seed, step, state, pictures
kinematics   joints to gripper pose and back
motion       from a goal to the next joint targets
prediction   the state a moment later, without physics
clearance    room around blocks
expert       the scripted policy, a pure function of `state`
words        sentences about the present and the past, in a closed grammar
trajectory   joint trajectories spliced in time, numpy only
pacing       simulated time against the wall clock
description  the robot as a URDF, for RViz and for the limits of its joints
parameters   the parameters of the ROS node
bridge       the ROS node `oxygen_sim`
"""
