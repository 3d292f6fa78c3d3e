# SPDX-License-Identifier: Apache-2.0
"""Training of the demo model, and its closed-loop evaluation in the simulator. No ROS.

main                the command `oxygen_train`
collect             episodes to shards: of the expert, or of the policy with corrections by the expert
views               frames of static layouts, for the vision tower alone
records             the record of one frame, and shards of frames on disk
labels              the true sentences of a frame, and memories that are wrong on purpose
batch               shards to tensors, in the served model's format
forward             the training forward pass: the served arithmetic, batched and differentiable
auxiliary_heads     training-only heads, such as block detection in image patches
vision_pretraining  the first stage: the vision tower alone
learn               losses, optimizer, the training loop; resumable
check               errors on held-out frames, and the loss curves
adapter             the memory adapter: LoRA on text rows alone, PEFT's format
checkpoints         the run's state on disk, and the export as a checkpoint folder
untrained           a checkpoint folder with random weights
policy              a checkpoint that moves the arm between labels (DAgger)
rollout             one closed-loop episode through a Session
timing              simulated time that inference takes: none, as measured, or a device's profile
evaluate            success over many episodes: `oxygen_eval`
clip                a film of an episode
"""
