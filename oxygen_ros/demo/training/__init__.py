# SPDX-License-Identifier: Apache-2.0
"""Training of the demo model, and its closed-loop evaluation in the simulator. No ROS.

main                the command `oxygen_train`
collect             episodes to shards: the expert's, or the policy's with the expert taking over
views               frames of layouts where nothing moves, for the vision tower alone
records             what is kept of one frame, and shards of frames on disk
labels              sentences a frame should be answered with, and memories that are wrong on purpose
batch               shards to tensors, as the served model would see them
forward             the training forward pass: the served arithmetic, batched and differentiable
auxiliary_heads     training-only heads, among them what makes image patches say where the blocks are
vision_pretraining  the first stage: the vision tower alone
learn               losses, optimizer, the training loop; resumable
check               errors on held-out frames, and the loss curves
adapter             the memory adapter: LoRA on text rows alone, PEFT's format
checkpoints         the run's state on disk, and the export as a checkpoint folder
untrained           a checkpoint folder with random weights
policy              a checkpoint that moves the arm between labels (DAgger)
rollout             one closed-loop episode through a Session
timing              simulated time that inference takes: none, as measured, or a device's profile
evaluate            many episodes, counted: `oxygen_eval`
clip                a film of an episode
"""
