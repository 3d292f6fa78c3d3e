# SPDX-License-Identifier: Apache-2.0
"""Bags without a ROS installation: types of our messages, a writer and a reader.

The only user of the `rosbags` library. Callers interpret the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rosbags.highlevel import AnyReader
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

MESSAGES = ("ActionComponent", "ActionChunk", "TextOutput", "TickStats")


class BagError(ValueError):
    """A bag cannot be read or written; the text names the bag and the reason."""


def bag_types(message_folder: Path) -> Typestore:
    """The distribution's message types with ours, from the folder that holds our .msg files.

    Raises BagError when a definition is not there.
    """
    types: dict[str, Any] = {}
    for name in MESSAGES:
        file = message_folder / f"{name}.msg"
        if not file.is_file():
            raise BagError(f"{file} is missing: the package's share folder holds our message definitions")
        types.update(get_types_from_msg(file.read_text(), f"oxygen_ros/msg/{name}"))
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(types)
    return store


def make_qos(*, reliable: bool, transient_local: bool, depth: int) -> Qos:
    """The part of a publisher's QoS that a player must offer again; the rest is default."""
    endless = QosTime(sec=9223372036, nsec=854775807)
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=depth,
        reliability=QosReliability.RELIABLE if reliable else QosReliability.BEST_EFFORT,
        durability=QosDurability.TRANSIENT_LOCAL if transient_local else QosDurability.VOLATILE,
        deadline=endless,
        lifespan=endless,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=endless,
        avoid_ros_namespace_conventions=False,
    )


class BagWriter:
    """An mcap bag of serialized messages, compressed in its chunks; `with` closes it properly."""

    def __init__(self, folder: Path, types: Typestore) -> None:
        """folder: made by the writer; must not exist."""
        if folder.exists():
            raise BagError(f"bag {folder} exists already: choose another name or remove it")
        self.types = types
        self.messages = 0
        self._writer = Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP)
        self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        self._connections: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        self._writer.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def add(self, topic: str, message_type: str, qos: Qos) -> None:
        """Add a topic; BagError when its type is unknown."""
        if message_type not in self.types.fielddefs:
            raise BagError(f"topic {topic}: type {message_type} is not known to the bag writer")
        self._connections[topic] = self._writer.add_connection(
            topic, message_type, typestore=self.types, offered_qos_profiles=[qos]
        )

    def write(self, topic: str, stamp: int, serialized: bytes | memoryview) -> None:
        """Append a serialized (CDR) message received at `stamp` [ns]."""
        self._writer.write(self._connections[topic], stamp, serialized)
        self.messages += 1

    def write_message(self, topic: str, stamp: int, message: Any) -> None:
        """Append a message object of the bag's own types."""
        connection = self._connections[topic]
        self.write(topic, stamp, self.types.serialize_cdr(message, connection.msgtype))


def read_messages(
    bag: Path, types: Typestore, visit: Callable[[str, int, Any], None], topics: Sequence[str] | None = None
) -> None:
    """Call visit(topic, received [ns], message) for each message of a bag (mcap or db3), in order.

    Raises BagError when the bag cannot be read.
    """
    try:
        with AnyReader([bag], default_typestore=types) as reader:
            wanted = [c for c in reader.connections if topics is None or c.topic in topics]
            # The library takes no connection for all of them.
            for connection, stamp, raw in reader.messages(wanted) if wanted else ():
                visit(connection.topic, stamp, types.deserialize_cdr(raw, connection.msgtype))
    except BagError:
        raise
    except Exception as error:  # the library raises many kinds for a broken bag
        raise BagError(f"bag {bag} cannot be read: {error}") from error
