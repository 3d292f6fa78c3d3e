# SPDX-License-Identifier: Apache-2.0
"""Starts the node `oxygen` for a robot.

    ros2 launch oxygen_ros oxygen.launch.py model:=/models/my_model robot:=my_robot.yaml

`ros2 param describe` explains each parameter.
"""

from pathlib import Path

import yaml
from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.conditions import IfCondition
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterFile

from launch import LaunchContext, LaunchDescription

# Seconds from Ctrl-C to a harsher signal: a tick under way is finished and its texts are published first.
GRACE = "15"
RESPAWN_DELAY = 2.0  # seconds; long enough for a driver to release a lost context

ARGUMENTS = [
    DeclareLaunchArgument(
        "model",
        default_value="",
        description="Folder of the model (config and safetensors); empty: `model` of the robot file.",
    ),
    DeclareLaunchArgument(
        "robot",
        description="Parameter file (YAML) of your robot: cameras, joints, limits, trigger. "
        "Start from share/oxygen_ros/config.",
    ),
    DeclareLaunchArgument(
        "joint_states",
        default_value="joint_states",
        description="Topic of the robot's joint states.",
    ),
    DeclareLaunchArgument(
        "joint_trajectory",
        default_value="~/joint_trajectory",
        description="Topic for commands, e.g. /joint_trajectory_controller/joint_trajectory; "
        "published only while command.enabled.",
    ),
    DeclareLaunchArgument(
        "namespace",
        default_value="",
        description="Namespace of the node; its relative topics move with it.",
    ),
    DeclareLaunchArgument(
        "autostart",
        default_value="",
        choices=["", "true", "false"],
        description="Whether the node walks to active by itself; empty: as the robot file says, else true.",
    ),
    DeclareLaunchArgument(
        "use_sim_time",
        default_value="",
        choices=["", "true", "false"],
        description="Whether time comes from /clock (simulator, `ros2 bag play --clock`); "
        "empty: as the robot file says, else false.",
    ),
    DeclareLaunchArgument(
        "respawn",
        default_value="true",
        choices=["true", "false"],
        description="Whether the node is started again when it ends before the launch does "
        "(a fault of the GPU ends it on purpose).",
    ),
    DeclareLaunchArgument(
        "rviz",
        default_value="false",
        choices=["true", "false"],
        description="Whether RViz is started too (rviz.launch.py).",
    ),
    DeclareLaunchArgument(
        "urdf",
        default_value="",
        description="With rviz: URDF file of the robot, for the ghost that shows where the chunk leads.",
    ),
    DeclareLaunchArgument(
        "log_level",
        default_value="info",
        choices=["debug", "info", "warn", "error", "fatal"],
        description="Least severity that is logged.",
    ),
]


def start_node(context: LaunchContext) -> list[Node]:
    """The node; a parameter is overridden only where its argument was given."""

    def value(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    robot = Path(value("robot"))
    try:
        yaml.safe_load(robot.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RuntimeError(f"robot:={robot} cannot be read as a parameter file: {error}") from error
    overrides: dict[str, str | bool] = {}
    if value("model"):
        overrides["model"] = value("model")
    for name in ("autostart", "use_sim_time"):
        if value(name):
            overrides[name] = value(name) == "true"
    node = Node(
        package="oxygen_ros",
        executable="oxygen_node",
        name="oxygen",
        namespace=value("namespace"),
        parameters=[ParameterFile(str(robot)), overrides],
        remappings=[
            ("joint_states", value("joint_states")),
            ("~/joint_trajectory", value("joint_trajectory")),
        ],
        arguments=["--ros-args", "--log-level", value("log_level")],
        respawn=value("respawn") == "true",
        respawn_delay=RESPAWN_DELAY,
        sigterm_timeout=GRACE,
        output="both",
        emulate_tty=True,
    )
    return [node]


def generate_launch_description() -> LaunchDescription:
    share = Path(get_package_share_directory("oxygen_ros"))
    views = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(share / "launch" / "rviz.launch.py")),
        launch_arguments={
            name: LaunchConfiguration(name) for name in ("urdf", "namespace", "use_sim_time")
        }.items(),
        condition=IfCondition(LaunchConfiguration("rviz")),
    )
    # First: without what it needs nothing is to be started.
    return LaunchDescription([*ARGUMENTS, views, OpaqueFunction(function=start_node)])
