"""Whose account a call is on: nothing of the package's own variables goes to an endpoint that they were not meant for."""

from __future__ import annotations
