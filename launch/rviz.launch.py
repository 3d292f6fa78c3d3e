# SPDX-License-Identifier: Apache-2.0
"""RViz with cameras, robot, text, and the chunk as a ghost robot.

    ros2 launch oxygen_ros rviz.launch.py urdf:=/path/of/my_robot.urdf

The node needs none of it. Starts rviz2, for the ghost a second robot_state_publisher whose frames begin with
`ghost/`, and the transform from the robot's root to the ghost's.
"""

import xml.etree.ElementTree as xml
from pathlib import Path

from ament_index_python.packages import PackageNotFoundError, get_package_prefix, get_package_share_directory
from launch.actions import DeclareLaunchArgument, LogInfo, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription

NEEDED = ("rviz2", "robot_state_publisher", "tf2_ros")
GHOST = "ghost"

ARGUMENTS = [
    DeclareLaunchArgument(
        "urdf",
        default_value="",
        description="URDF file of the robot (from xacro: `xacro my.urdf.xacro > my.urdf`), for the "
        "ghost that shows where the chunk leads; empty: no ghost.",
    ),
    DeclareLaunchArgument(
        "robot_state_publisher",
        default_value="false",
        choices=["true", "false"],
        description="Whether a robot_state_publisher is started for the robot itself too; "
        "robots bring their own, the demo does not.",
    ),
    DeclareLaunchArgument(
        "namespace",
        default_value="",
        description="Namespace of the node `oxygen` whose chunks the ghost shows.",
    ),
    DeclareLaunchArgument(
        "rviz_config",
        default_value=str(Path(get_package_share_directory("oxygen_ros")) / "config" / "oxygen.rviz"),
        description="RViz configuration; the package's own shows the topics of the demo robot.",
    ),
    DeclareLaunchArgument(
        "use_sim_time",
        default_value="",
        choices=["", "true", "false"],
        description="Whether time comes from /clock; empty: no.",
    ),
]


def start_views(context: LaunchContext) -> list[Node | LogInfo]:
    """What can be shown. Raises RuntimeError that names packages which are not installed, or a bad file."""

    def value(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    missing = [package for package in NEEDED if not is_installed(package)]
    if missing:
        debian = " ".join(f"ros-$ROS_DISTRO-{package.replace('_', '-')}" for package in missing)
        raise RuntimeError(
            f"RViz needs {', '.join(missing)}, not installed here: apt install {debian}; or start without "
            "rviz:=true, and this launch file on a machine that has them"
        )
    clock = {"use_sim_time": value("use_sim_time") == "true"}
    rviz = Node(
        package="rviz2", executable="rviz2", arguments=["-d", value("rviz_config")], parameters=[clock]
    )
    if not value("urdf"):
        return [LogInfo(msg="no ghost of the chunk: give urdf:=/path/of/robot.urdf"), rviz]
    text, root = read_urdf(Path(value("urdf")))
    space = value("namespace").strip("/")
    preview = "/" + "/".join(filter(None, [space, "oxygen/preview/joint_states"]))
    ghost = Node(
        package="robot_state_publisher",
        executable="robot_state_publisher",
        namespace=GHOST,
        parameters=[{"robot_description": text, "frame_prefix": f"{GHOST}/"}, clock],
        remappings=[("joint_states", preview)],
    )
    tie = Node(
        package="tf2_ros",
        executable="static_transform_publisher",
        namespace=GHOST,
        arguments=["--frame-id", root, "--child-frame-id", f"{GHOST}/{root}"],
        parameters=[clock],
    )
    started: list[Node | LogInfo] = [rviz, ghost, tie]
    if value("robot_state_publisher") == "true":
        started.append(
            Node(
                package="robot_state_publisher",
                executable="robot_state_publisher",
                parameters=[{"robot_description": text}, clock],
            )
        )
    return started


def is_installed(package: str) -> bool:
    try:
        get_package_prefix(package)
    except PackageNotFoundError:
        return False
    return True


def read_urdf(file: Path) -> tuple[str, str]:
    """A URDF and the name of its root link. Raises RuntimeError for a file that holds none."""
    try:
        text = file.read_text()
        robot = xml.fromstring(text)
    except (OSError, UnicodeDecodeError, xml.ParseError) as error:
        raise RuntimeError(f"urdf:={file} cannot be read as a URDF: {error}") from error
    children = {child.get("link") for child in robot.findall("joint/child")}
    roots = [name for link in robot.findall("link") if (name := link.get("name")) not in children]
    if robot.tag != "robot" or len(roots) != 1 or roots[0] is None:
        raise RuntimeError(f"urdf:={file} is no URDF of one robot: <{robot.tag}> with root links {roots}")
    return text, roots[0]


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=start_views)])
