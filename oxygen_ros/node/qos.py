# SPDX-License-Identifier: Apache-2.0
"""The node's QoS profiles, and what is said when another node's do not fit them.

Here lives no subscription and no publisher.
"""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSCompatibility, QoSProfile, ReliabilityPolicy, qos_check_compatible
from rclpy.topic_endpoint_info import TopicEndpointInfo

CAMERA = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
JOINTS = QoSProfile(depth=60, reliability=ReliabilityPolicy.BEST_EFFORT)
INSTRUCTION = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
QUESTION = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
TEXT = QoSProfile(
    depth=10, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
TICK = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
DIAGNOSTICS = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)


def make_chunk_profile(deadline: float) -> QoSProfile:
    """The real-time topic: newest only, never old ones for late joiners, a new one every `deadline` s."""
    return QoSProfile(
        depth=1, reliability=ReliabilityPolicy.RELIABLE, deadline=Duration(nanoseconds=int(deadline * 1e9))
    )


def describe(profile: QoSProfile) -> str:
    """A profile in the words of `ros2 topic info --verbose`."""
    words = [profile.reliability.name.lower(), profile.durability.name.lower()]
    if 0 < profile.deadline.nanoseconds < 2**62:
        words.append(f"deadline {profile.deadline.nanoseconds / 1e9:g} s")
    return " ".join(words)


def explain_publisher(publisher: TopicEndpointInfo, type_name: str, profile: QoSProfile) -> str:
    """Why a subscription of `profile` hears nothing of a publisher; "" when it does."""
    if publisher.topic_type != type_name:
        hint = ""
        if {publisher.topic_type, type_name} == {"sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"}:
            hint = "; set the camera's transport"
        return f"{_name(publisher)} publishes {publisher.topic_type}, this node reads {type_name}{hint}"
    if qos_check_compatible(publisher.qos_profile, profile)[0] != QoSCompatibility.ERROR:
        return ""
    return (
        f"{_name(publisher)} offers {describe(publisher.qos_profile)}, this node requests "
        f"{describe(profile)}: incompatible QoS, nothing is received from it"
    )


def explain_subscription(subscription: TopicEndpointInfo, profile: QoSProfile) -> str:
    """Why a subscription hears nothing of a publisher of `profile`; "" when it does."""
    if qos_check_compatible(profile, subscription.qos_profile)[0] != QoSCompatibility.ERROR:
        return ""
    return (
        f"{_name(subscription)} requests {describe(subscription.qos_profile)}, this node offers "
        f"{describe(profile)}: incompatible QoS, it receives nothing"
    )


def _name(endpoint: TopicEndpointInfo) -> str:
    return f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"
