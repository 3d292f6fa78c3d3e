# SPDX-License-Identifier: Apache-2.0
"""Messages' content to observations and back, in numpy: images, joints, sampling in time, chunks, limits.

Here lives nothing that imports rclpy or torch: the live node and whatever reads a bag call the same code
with the plain contents of their messages.

    images.py, yuv.py   bytes of an Image or CompressedImage -> uint8 [H, W, 3] RGB
    joints.py           partial, interleaved JointState messages -> one vector at one instant
    sampler.py          streams -> the newest set which is coherent in time, or what is wrong and where
    sample.py           the sampler's two answers
    explanation.py      the second of them, in words: what keeps the inputs apart
    streams.py          what is counted and said about one stream
    chunk.py            one action chunk and its place in time
    overlap.py          a chunk and what is left of the one before: replaced, blended or guided
    limits.py           joint and speed limits over a chunk
    description.py      those limits out of a robot description (URDF)
    join.py             the way from where the controller is into a chunk's trajectory
"""
