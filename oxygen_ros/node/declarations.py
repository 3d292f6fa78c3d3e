# SPDX-License-Identifier: Apache-2.0
"""The table of parameters on a node: declaring, overrides from files, changes at run time.

A wrong parameter never ends the node: the problem is kept, configure fails with it, and setting the parameter
cures it. All methods run in the executor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from oxygen_ros.node.parameters import FIXED, ParameterProblem, Row, explain_unknown, find_rows

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
    """The node's parameters. `values` has the checked ones, `problems` what is wrong, by name."""

    def __init__(
        self,
        node: Node,
        may_change: Callable[[], bool],
        expect: Callable[[str, Any], None],
        changed: Callable[[str, Any], None],
    ) -> None:
        """may_change:  whether parameters that are read at configure may be set now
        expect:      raises ParameterProblem when a live parameter may not have a value now
        changed:     called after a live parameter was set, with its name and value
        """
        self._node = node
        self._may_change = may_change
        self._expect = expect
        self._changed = changed
        self._rows: dict[str, Row] = {}
        self._set: set[str] = set()  # names that were set, by an override or later
        self.values: dict[str, Any] = {}
        self.problems: dict[str, str] = {}
        # rclpy has no public access to the overrides; declaring them unchecked would fix wrong types.
        self._overrides = {name: item.value for name, item in node._parameter_overrides.items()}
        rows = find_rows(self._overrides)
        self.declare(rows.values())
        for name in self._overrides:
            if name not in rows and not name.startswith(_OF_RCLPY):
                self._declare_unknown(name)
        node.add_pre_set_parameters_callback(self._convert)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._take)

    def declare(self, rows: Iterable[Row]) -> None:
        """Declare the rows that are not declared yet. A wrong override is kept as a problem."""
        for row in rows:
            if row.name in self._rows:
                continue
            value = row.default
            if row.name in self._overrides:
                self._set.add(row.name)
                try:
                    value = row.check(self._overrides[row.name])
                except ParameterProblem as problem:
                    self.problems[row.name] = str(problem)
            self._rows[row.name] = row
            self.values[row.name] = value
            if value == []:
                # rclpy cannot infer the type of an empty list: declare by type, then set the value.
                kind = _TYPES[row.type]
                self._node.declare_parameter(row.name, kind, _describe(row), ignore_override=True)
                self._node.set_parameters([Parameter(row.name, kind, [])])
            else:
                self._node.declare_parameter(row.name, value, _describe(row), ignore_override=True)

    def given(self) -> dict[str, Any]:
        """The values that were set. Cameras and joints at defaults are left out: a model may lack them."""
        return {
            name: value
            for name, value in self.values.items()
            if name in self._set
            and (name in FIXED or name.startswith("text.") or value != self._rows[name].default)
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
        # Declared with a free type, so that `ros2 param delete` works without a restart.
        self.problems[name] = explain_unknown(name, self._rows)
        self._node.declare_parameter(
            name,
            self._overrides[name],
            ParameterDescriptor(description=self.problems[name], dynamic_typing=True),
            ignore_override=True,
        )

    def _convert(self, parameters: list[Parameter]) -> list[Parameter]:
        """Turn an exact integer into the double that is meant."""
        doubles = {name for name, row in self._rows.items() if row.type == "double"}
        return [
            Parameter(parameter.name, value=float(parameter.value))
            if parameter.type_ == Parameter.Type.INTEGER and parameter.name in doubles
            else parameter
            for parameter in parameters
        ]

    def _check(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            row = self._rows.get(parameter.name)
            if row is None:
                continue
            try:
                row.check(parameter.value)
                if row.live:
                    self._expect(row.name, parameter.value)
                elif parameter.value != self.values[row.name] and not self._may_change():
                    words = f"parameter '{row.name}' is read at configure; deactivate and clean up first"
                    raise ParameterProblem(words)
            except ParameterProblem as problem:
                return SetParametersResult(successful=False, reason=str(problem))
        return SetParametersResult(successful=True)

    def _take(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            name, row = parameter.name, self._rows.get(parameter.name)
            self.problems.pop(name, None)
            if row is None:
                if self._node.has_parameter(name):
                    self.problems[name] = explain_unknown(name, self._rows)
                continue
            self._set.add(name)
            self.values[name] = row.check(parameter.value)
            if row.live:
                self._changed(name, self.values[name])


def _describe(row: Row) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(
        description=row.description,
        read_only=row.read_only,
        additional_constraints=row.allowed + ("" if row.live or row.read_only else "; read at configure"),
    )
    if row.low is not None and row.high is not None:
        low, high = row.low, row.high
        if row.type == "int":
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
        else:
            bounds = FloatingPointRange(from_value=float(low), to_value=float(high))
            descriptor.floating_point_range = [bounds]
    return descriptor
