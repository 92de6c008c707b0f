"""The formats of command headers: one module each, listed in ``table``.

No frames and no bodies.  A format maps bytes to the values of :data:`header_format.HeaderValues` and back.
"""
