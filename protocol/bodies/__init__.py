"""JSON bodies of requests and responses, as fastjson writes and reads them, and rules about their contents.

No header fields (``requests``).
"""
