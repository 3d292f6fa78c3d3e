# SPDX-License-Identifier: Apache-2.0
"""The table of parameters on a node: declaring, overrides from files, changes at run time.

Here lives the promise that a wrong parameter never ends the node: what is wrong with an override is kept,
configure fails with it, and setting the parameter right cures it. All methods run in the executor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from oxygen_ros.node.parameters import FIXED, ParameterProblem, Row, explain_unknown, find_row

_TYPES = {
    "bool": Parameter.Type.BOOL,
    "int": Parameter.Type.INTEGER,
    "double": Parameter.Type.DOUBLE,
    "string": Parameter.Type.STRING,
    "strings": Parameter.Type.STRING_ARRAY,
}
# Declared by rclpy itself, or read by it without declaring.
_OF_RCLPY = ("use_sim_time", "start_type_description_service", "qos_overrides.")


class Declarations:
    """The node's parameters. `values` holds the checked ones, `problems` what is wrong by name."""

    def __init__(
        self, node: Node, may_change: Callable[[], bool], changed: Callable[[str, Any], None]
    ) -> None:
        """may_change:  whether parameters that are read at configure may be set now
        changed:     called after a live parameter was set, with its name and value
        """
        self._node = node
        self._may_change = may_change
        self._changed = changed
        self._rows: dict[str, Row] = {}
        self.values: dict[str, Any] = {}
        self.problems: dict[str, str] = {}
        # rclpy has no public look at the overrides; declaring them blindly would fix wrong types for good.
        self._overrides = {name: item.value for name, item in node._parameter_overrides.items()}
        self.declare(FIXED.values())
        for name in self._overrides:
            row = find_row(name)
            if row is not None:
                self.declare([row])
            elif not name.startswith(_OF_RCLPY):
                self._declare_unknown(name)
        node.add_pre_set_parameters_callback(self._convert)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._take)

    def declare(self, rows: Iterable[Row]) -> None:
        """Declare rows, those there already excepted. A wrong override is kept as a problem."""
        for row in rows:
            if row.name in self._rows:
                continue
            value = row.default
            if row.name in self._overrides:
                try:
                    value = row.check(self._overrides[row.name])
                except ParameterProblem as problem:
                    self.problems[row.name] = str(problem)
            self._rows[row.name] = row
            self.values[row.name] = value
            if value == []:
                # rclpy cannot tell the type of an empty list: declared by type first, then given its value.
                kind = _TYPES[row.type]
                self._node.declare_parameter(row.name, kind, _describe(row), ignore_override=True)
                self._node.set_parameters([Parameter(row.name, kind, [])])
            else:
                self._node.declare_parameter(row.name, value, _describe(row), ignore_override=True)

    def given(self) -> dict[str, Any]:
        """All values but those of cameras and joints that were never set: another model may have others."""
        return {
            name: value
            for name, value in self.values.items()
            if name in FIXED or value != self._rows[name].default
        }

    def check_all(self) -> None:
        """Raise ParameterProblem with everything that is wrong or missing."""
        wrong = list(self.problems.values())
        for name, row in self._rows.items():
            if row.required and not self.values[name] and name not in self.problems:
                wrong.append(f"parameter '{name}' is missing; it must be {row.allowed}: {row.description}")
        if wrong:
            raise ParameterProblem("; ".join(wrong))

    def _declare_unknown(self, name: str) -> None:
        # Declared with a free type, so that `ros2 param delete` is a cure without a restart.
        self.problems[name] = explain_unknown(name)
        self._node.declare_parameter(
            name,
            self._overrides[name],
            ParameterDescriptor(description=self.problems[name], dynamic_typing=True),
            ignore_override=True,
        )

    def _convert(self, parameters: list[Parameter]) -> list[Parameter]:
        """Turn an exact integer into the double that is meant."""
        converted = []
        for parameter in parameters:
            row = self._rows.get(parameter.name)
            if row is not None and row.type == "double" and parameter.type_ == Parameter.Type.INTEGER:
                parameter = Parameter(parameter.name, value=float(parameter.value))
            converted.append(parameter)
        return converted

    def _check(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            row = self._rows.get(parameter.name)
            if row is None:
                continue
            try:
                row.check(parameter.value)
            except ParameterProblem as problem:
                return SetParametersResult(successful=False, reason=str(problem))
            is_changed = parameter.value != self.values[parameter.name]
            if is_changed and not row.live and not self._may_change():
                return SetParametersResult(
                    successful=False,
                    reason=f"parameter '{row.name}' is read at configure; deactivate and clean up first",
                )
        return SetParametersResult(successful=True)

    def _take(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            row = self._rows.get(parameter.name)
            if row is None:
                self.problems.pop(parameter.name, None)
                if self._node.has_parameter(parameter.name):
                    self.problems[parameter.name] = explain_unknown(parameter.name)
                continue
            self.problems.pop(parameter.name, None)
            self.values[parameter.name] = row.check(parameter.value)
            if row.live:
                self._changed(parameter.name, self.values[parameter.name])


def _describe(row: Row) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(
        description=row.description,
        read_only=row.read_only,
        additional_constraints=row.allowed + ("" if row.live or row.read_only else "; read at configure"),
    )
    if row.low is not None and row.high is not None:
        if row.type == "int":
            descriptor.integer_range = [IntegerRange(from_value=int(row.low), to_value=int(row.high), step=1)]
        else:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(row.low), to_value=float(row.high), step=0.0)
            ]
    return descriptor
