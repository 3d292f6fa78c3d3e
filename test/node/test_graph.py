# SPDX-License-Identifier: Apache-2.0
"""What node and demo robot create, compared with the SROS 2 policy and the RViz configuration."""

from __future__ import annotations

import time
import xml.etree.ElementTree as xml
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from node_lab import Robot
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

ROOT = Path(__file__).resolve().parents[2]
# Of the plugins that come with RViz, those the configuration may name, and what their topics carry.
DISPLAYS = {
    "rviz_default_plugins/Grid": None,
    "rviz_default_plugins/TF": None,
    "rviz_default_plugins/Image": "sensor_msgs/msg/Image",
    "rviz_default_plugins/MarkerArray": "visualization_msgs/msg/MarkerArray",
    "rviz_default_plugins/RobotModel": "std_msgs/msg/String",
}
# Published by launch/rviz.launch.py's second robot_state_publisher, not by us.
GHOST = "/ghost/robot_description"
# The node has it only while it configures, and only where limits are to come from there.
PASSING = {"/robot_description"}


@pytest.fixture(scope="module")
def graph(start_node: Callable[..., Any], robot: Robot) -> Any:
    """A node that sees the graph of a configured oxygen under sim time; the lab's robot is not in it."""
    start_node({"autostart": False, "use_sim_time": True})
    assert robot.change_state("configure")
    return robot.node


def names(graph: Any, kind: str) -> set[str]:
    find = getattr(graph, f"get_{kind}_names_and_types_by_node")
    return {name for name, _ in find("oxygen", "/")}


def allowed(kind: str, way: str) -> set[str]:
    """Names of the policy, resolved for the node /oxygen. kind: topic, service; way: publish, reply, ..."""
    (profile,) = xml.parse(ROOT / "config" / "sros2" / "oxygen_policy.xml").getroot().iter("profile")
    assert profile.attrib == {"ns": "/", "node": "oxygen"}
    found: list[str] = []
    for group in profile:
        assert list(group.attrib.values()) == ["ALLOW"], "one direction a group, and only what is allowed"
        if group.tag == f"{kind}s" and way in group.attrib:
            found += [item.text or "" for item in group]
    assert len(set(found)) == len(found), "named twice"
    return {resolve(name) for name in found}


def resolve(name: str) -> str:
    return name.replace("~", "/oxygen") if name.startswith("~") else "/" + name.lstrip("/")


@pytest.mark.parametrize(
    ("kind", "way", "end"),
    [
        ("topic", "publish", "publisher"),
        ("topic", "subscribe", "subscriber"),
        ("service", "reply", "service"),
        ("service", "request", "client"),
    ],
)
def test_policy_allows_what_the_node_creates_and_nothing_else(
    graph: Any, kind: str, way: str, end: str
) -> None:
    deadline = time.monotonic() + 20.0
    while (created := names(graph, end)) - PASSING != (granted := allowed(kind, way)) - PASSING:
        # What others create becomes known bit by bit.
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert created - granted == set(), "created but not in config/sros2/oxygen_policy.xml"
    assert granted - created - PASSING == set(), "in config/sros2/oxygen_policy.xml but not created"


def test_policy_is_of_the_form_sros2_reads() -> None:
    root = xml.parse(ROOT / "config" / "sros2" / "oxygen_policy.xml").getroot()
    assert root.tag == "policy"
    assert root.get("version") == "0.2.0"
    assert [child.tag for child in root] == ["enclaves"]
    (enclave,) = root[0]
    assert (enclave.tag, enclave.get("path")) == ("enclave", "/oxygen")
    ways = {"topics": {"publish", "subscribe"}, "services": {"reply", "request"}}
    for group in next(enclave.iter("profile")):
        assert set(group.attrib) <= ways[group.tag]
        assert {item.tag for item in group} == {group.tag.removesuffix("s")}


def rviz() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "config" / "oxygen.rviz").read_text())
    return loaded


def rviz_topics() -> dict[str, tuple[str, dict[str, Any]]]:
    """Topic -> the type its display reads, and the display's QoS."""
    topics: dict[str, tuple[str, dict[str, Any]]] = {}
    for display in rviz()["Visualization Manager"]["Displays"]:
        kind = DISPLAYS[display["Class"]]
        if kind is not None:
            profile = display.get("Topic") or display["Description Topic"]
            topics[profile["Value"]] = (kind, profile)
    return topics


def test_rviz_shows_what_is_published(graph: Any, robot: Robot, run_process: Callable[..., Any]) -> None:
    """Every topic in the file has a publisher, of the display's type, whose offer satisfies its request."""
    topics = rviz_topics()
    assert {"/oxygen/markers", "/robot_description", "/camera/top/image_raw", GHOST} <= set(topics)
    # The lab's robot is not the demo's: only what oxygen_sim and oxygen themselves publish counts.
    simulator = run_process("oxygen_sim", ROOT / "config" / "sim.yaml")
    try:
        for topic, (kind, profile) in topics.items():
            if topic != GHOST:
                assert_publishes(graph, topic, kind, profile)
    finally:
        simulator.stop()


def assert_publishes(graph: Any, topic: str, kind: str, profile: dict[str, Any]) -> None:
    deadline = time.monotonic() + 40.0
    offers: list[Any] = []
    while not offers:
        assert time.monotonic() < deadline, f"{topic}: neither oxygen nor oxygen_sim publishes it"
        ends = graph.get_publishers_info_by_topic(topic)
        offers = [end for end in ends if end.node_name in ("oxygen", "oxygen_sim")]
        time.sleep(0.1)
    for offer in offers:
        assert offer.topic_type == kind
        if profile["Reliability Policy"] == "Reliable":
            assert offer.qos_profile.reliability == ReliabilityPolicy.RELIABLE, f"{topic} is best effort"
        if profile["Durability Policy"] == "Transient Local":
            assert offer.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL, f"{topic} is volatile"


def test_rviz_ghost_is_what_the_launch_file_starts() -> None:
    launch = (ROOT / "launch" / "rviz.launch.py").read_text()
    displays = rviz()["Visualization Manager"]["Displays"]
    (ghost,) = [display for display in displays if display.get("TF Prefix")]
    assert f'GHOST = "{ghost["TF Prefix"]}"' in launch
    assert ghost["Description Topic"]["Value"] == GHOST


def test_rviz_fixed_frame_is_the_robots_root_and_that_of_the_words() -> None:
    frame = rviz()["Visualization Manager"]["Global Options"]["Fixed Frame"]
    demo = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())["/**"]["ros__parameters"]
    robot = xml.parse(ROOT / "resource" / "demo_robot.urdf").getroot()
    children = {child.get("link") for child in robot.findall("joint/child")}
    assert [link.get("name") for link in robot.findall("link") if link.get("name") not in children] == [frame]
    assert demo["markers"]["frame"] == frame


def test_analyzer_expects_the_parts_there_are(graph: Any, robot: Robot) -> None:
    file = yaml.safe_load((ROOT / "config" / "diagnostics.yaml").read_text())
    analyzer = file["/**"]["ros__parameters"]["oxygen"]
    message = robot.wait_for("/diagnostics", after=robot.now("/diagnostics"))
    assert {status.name for status in message.status} == set(analyzer["expected"])
    assert all(status.name.startswith(tuple(analyzer["startswith"])) for status in message.status)
    assert all(status.hardware_id for status in message.status)
