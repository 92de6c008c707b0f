"""Frames and commands on the wire: splitting, header formats, header declarations, request signing.

No headers of single requests (``requests``), no bodies (``bodies``), no message records (``record``).
"""
