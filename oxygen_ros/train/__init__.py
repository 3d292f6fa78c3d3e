# SPDX-License-Identifier: Apache-2.0
"""Training of the demo model, and its closed-loop evaluation in the simulator. No ROS.

labels      sentences a frame should be answered with, and memories that are wrong on purpose
records     what is kept of one frame, and shards of frames on disk
disturb     pushes off the expert's path
collect     episodes in the simulator to shards: the expert's, or the policy's with the expert taking over
views       frames of layouts where nothing moves, for the eyes alone
pictures    pictures of shards to the network's input
batch       shards to tensors, as the served model would see them
forward     the training forward pass: the served arithmetic, batched and differentiable
spotting    training-only heads that make image patches say where the blocks are
learn       losses, optimiser, the training loop; resumable
eyes        the first stage: the vision tower alone
checkpoints the run's state on disk, and the export as a checkpoint folder
adapter     the memory adapter: LoRA on text rows alone, PEFT's format
rollout     one closed-loop episode through the served Session
timing      simulated time that inference takes: none, as measured, or a device's profile
clip        a film of an episode
evaluate    many episodes, counted: `oxygen_eval`
main        the command `oxygen_train`
"""
