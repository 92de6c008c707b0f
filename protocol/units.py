"""Types of numbers that must not be confused; all are signed 64-bit numbers on disk and on the wire."""

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the whole commit log."""

QueueOffset = NewType("QueueOffset", int)
"""n-th message of one queue, from 0."""

Timestamp = NewType("Timestamp", int)
"""Milliseconds since 1970-01-01 UTC."""
