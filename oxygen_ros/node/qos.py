# SPDX-License-Identifier: Apache-2.0
"""The node's QoS profiles, and why another node's do not fit them."""

from __future__ import annotations

from collections.abc import Iterable

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.topic_endpoint_info import TopicEndpointInfo

CAMERA = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
JOINTS = QoSProfile(depth=60, reliability=ReliabilityPolicy.BEST_EFFORT)
# Both durabilities are received: a latched instruction from before the start, and a plain publisher's.
INSTRUCTION_LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
INSTRUCTION = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
DESCRIPTION = INSTRUCTION_LATCHED  # as robot_state_publisher offers it
# Deep enough for a burst: what overflows in the middleware is lost silently.
QUESTION = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
TEXT = QoSProfile(
    depth=10, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
TICK = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
DIAGNOSTICS = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)

NO_DEADLINE = 2**62  # ns; discovery reports about twice this for a profile without one


def make_chunk_profile(deadline: float) -> QoSProfile:
    """For chunks: the newest only, none for late joiners, one every `deadline` s."""
    return QoSProfile(
        depth=1, reliability=ReliabilityPolicy.RELIABLE, deadline=Duration(nanoseconds=int(deadline * 1e9))
    )


def describe(profile: QoSProfile) -> str:
    """A profile as `ros2 topic info --verbose` prints it."""
    words = [profile.reliability.name.lower(), profile.durability.name.lower()]
    if _deadline(profile) < float("inf"):
        words.append(f"deadline {_deadline(profile):g} s")
    return " ".join(words)


def explain_publisher(publisher: TopicEndpointInfo, type_name: str, profile: QoSProfile) -> str:
    """Why a subscription of `profile` receives nothing from a publisher; "" when it does."""
    if publisher.topic_type != type_name:
        hint = ""
        if {publisher.topic_type, type_name} == {"sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"}:
            hint = "; set the camera's transport"
        return f"{_name(publisher)} publishes {publisher.topic_type}, this node reads {type_name}{hint}"
    if _fits(publisher.qos_profile, profile):
        return ""
    return (
        f"{_name(publisher)} offers {describe(publisher.qos_profile)}, this node requests "
        f"{describe(profile)}: incompatible QoS, nothing is received from it"
    )


def explain_subscription(subscription: TopicEndpointInfo, profile: QoSProfile) -> str:
    """Why a subscription receives nothing from a publisher of `profile`; "" when it does."""
    if _fits(profile, subscription.qos_profile):
        return ""
    return (
        f"{_name(subscription)} requests {describe(subscription.qos_profile)}, this node offers "
        f"{describe(profile)}: incompatible QoS, it receives nothing"
    )


def collect(problems: Iterable[tuple[str, str]]) -> dict[str, str]:
    """name -> its problems, without empty ones."""
    found: dict[str, str] = {}
    for name, words in problems:
        if words:
            found[name] = f"{found[name]}; {words}" if name in found else words
    return found


def _fits(offered: QoSProfile, requested: QoSProfile) -> bool:
    """Whether an offer satisfies a request.

    rclpy's own check does not equate a missing deadline with the infinite one that discovery reports.
    """
    asks_reliable = requested.reliability == ReliabilityPolicy.RELIABLE
    asks_latched = requested.durability == DurabilityPolicy.TRANSIENT_LOCAL
    return (
        not (asks_reliable and offered.reliability == ReliabilityPolicy.BEST_EFFORT)
        and not (asks_latched and offered.durability == DurabilityPolicy.VOLATILE)
        and _deadline(offered) <= _deadline(requested)
    )


def _deadline(profile: QoSProfile) -> float:
    """Seconds; infinite where none is set."""
    span = int(profile.deadline.nanoseconds)
    return span / 1e9 if 0 < span < NO_DEADLINE else float("inf")


def _name(endpoint: TopicEndpointInfo) -> str:
    return f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"
