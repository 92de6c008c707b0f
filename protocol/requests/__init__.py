"""One header class for each request code and its response: of clients in ``requests``, of tools in ``admin_requests``.

Declarations only: ``wire.headers`` encodes and decodes them.
"""
