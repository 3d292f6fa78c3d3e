# SPDX-License-Identifier: Apache-2.0
"""The demo robot: its simulator, the training of its model, and the demo program.

sim         the simulated arm, and its ROS node `oxygen_sim`
training    the demo model: collect, train, evaluate in closed loop (`oxygen_train`, `oxygen_eval`)
main        `oxygen_demo`: robot and node as processes, recorded and plotted
recorder    records every topic into a bag
screen      the demo in a terminal
page        a picture of a run, from its bag
joins       how smoothly chunks are joined, measured in this arm
sample_bag  the bag of the robot at work that ships with the package

The product (engine, models, robot, node, replay) imports nothing from here.
"""
