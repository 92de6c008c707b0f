"""Frames and commands on the wire: splitting, header formats, header declarations, request signing, replication.

No headers of single requests (``requests``), no bodies (``bodies``), no message records (``record``).
"""
