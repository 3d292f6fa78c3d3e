# SPDX-License-Identifier: Apache-2.0
"""Errors of loading a model folder."""

from __future__ import annotations


class ModelError(ValueError):
    """A model folder does not fit; the text names the file or tensor, what was found and the cure."""


class LoadInterrupted(Exception):
    """Loading was stopped because the caller asked for it (shutdown while configuring)."""
