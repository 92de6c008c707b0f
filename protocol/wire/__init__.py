"""Frames and commands on the wire: splitting, header formats, header declarations, request signing.

No request codes' headers (``requests``), no bodies (``bodies``), no message records (``record``).
"""
