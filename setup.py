# SPDX-License-Identifier: Apache-2.0
"""`pip install .`: the ROS-free parts (engine, models, robot, demo) as a plain Python package.

The ROS package with messages and nodes is built by CMakeLists.txt. Both read the version from package.xml.
"""

import xml.etree.ElementTree
from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).resolve().parent
manifest = xml.etree.ElementTree.parse(ROOT / "package.xml").getroot()


def field(name: str) -> str:
    text = manifest.findtext(name)
    if text is None:
        raise ValueError(f"package.xml: <{name}> is missing")
    return " ".join(text.split())


extras = {
    "model": ["torch>=2.6", "safetensors>=0.4", "tokenizers>=0.19"],
    "sim": ["mujoco>=3.2"],
    "bags": ["rosbags>=0.10", "matplotlib>=3.8"],
    "view": ["rich>=13", "tqdm>=4.66"],
}
extras["all"] = sorted(set().union(*extras.values()))
extras["test"] = ["hypothesis>=6.100", "pytest>=7.4"]

# Commands that need no ROS.
scripts = [
    "oxygen_train=oxygen_ros.demo.training.main:main",
    "oxygen_eval=oxygen_ros.demo.training.evaluate:main",
    "oxygen_bench=oxygen_ros.bench.main:main",
]

shared = [
    (
        f"share/oxygen_ros/{folder.relative_to(ROOT)}",
        [str(path.relative_to(ROOT)) for path in sorted(folder.iterdir()) if path.is_file()],
    )
    for top in ("config", "resource")
    for folder in [ROOT / top, *sorted((ROOT / top).rglob("*/"))]
    if folder.is_dir()
]

setup(
    name=field("name"),
    version=field("version"),
    description=field("description"),
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_namespace_packages(include=["oxygen_ros", "oxygen_ros.*"], exclude=["*.__pycache__"]),
    package_data={"": ["py.typed", "*.xml", "*.json", "*.yaml"]},
    data_files=shared,
    install_requires=["numpy>=1.26", "pillow>=10", "PyYAML>=6.0"],
    extras_require=extras,
    entry_points={"console_scripts": scripts},
    zip_safe=False,
)
