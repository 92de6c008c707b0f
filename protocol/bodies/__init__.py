"""JSON bodies of requests and responses, as fastjson writes and reads them, and what is computed from them.

Header fields belong to ``requests``.
"""
