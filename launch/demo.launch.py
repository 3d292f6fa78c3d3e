# SPDX-License-Identifier: Apache-2.0
"""Starts the simulated robot and the node, as `oxygen_demo` does: `ros2 launch oxygen_ros demo.launch.py`.

The executables and parameter files are those of `oxygen_demo`.
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    share = Path(get_package_share_directory("oxygen_ros"))
    arguments = [
        DeclareLaunchArgument(
            "model",
            default_value="",
            description="Folder of the model; empty: the demo model of config/demo.yaml.",
        ),
        DeclareLaunchArgument(
            "rviz",
            default_value="false",
            choices=["true", "false"],
            description="Whether RViz is started too, with the simulated robot and the ghost of its chunk.",
        ),
        DeclareLaunchArgument(
            "log_level",
            default_value="info",
            choices=["debug", "info", "warn", "error", "fatal"],
            description="Least severity that is logged.",
        ),
    ]
    simulator = Node(
        package="oxygen_ros",
        executable="oxygen_sim",
        name="oxygen_sim",
        parameters=[str(share / "config" / "sim.yaml")],
        remappings=[("joint_trajectory", "oxygen/joint_trajectory")],
        arguments=["--ros-args", "--log-level", LaunchConfiguration("log_level")],
        output="both",
        emulate_tty=True,
        on_exit=Shutdown(reason="the simulator ended"),
    )
    node = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(share / "launch" / "oxygen.launch.py")),
        launch_arguments={
            "model": LaunchConfiguration("model"),
            "robot": str(share / "config" / "demo.yaml"),
            "log_level": LaunchConfiguration("log_level"),
            "rviz": LaunchConfiguration("rviz"),
            "urdf": str(share / "resource" / "demo_robot.urdf"),
            "robot_state_publisher": "true",
        }.items(),
    )
    return LaunchDescription([*arguments, node, simulator])
