# SPDX-License-Identifier: Apache-2.0
"""The content of messages to observations, and chunks to trajectories, in numpy.

Nothing in this package imports rclpy or torch: the live node and a reader of bags call the same code with the
plain contents of their messages.

    images.py          bytes of an Image or CompressedImage -> uint8 [H, W, 3] RGB
    joints.py          partial, interleaved JointState messages -> one vector at one instant
    streams.py         counters and problems of one input stream
    synchronizer.py    streams -> the newest set that is coherent in time, or what is missing and why
    chunk.py           one action chunk and its place in time
    joining/           a chunk and the one before: replaced, blended or guided; the trajectory sent of it
    limits.py          joint and speed limits over a chunk
    description.py     those limits out of a robot description (URDF)
    arithmetic.py      differences of positions and points between them
"""
