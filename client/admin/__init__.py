"""Administration: topics, groups, offsets, messages, dead letters.

Everything here is a request somebody made; nothing runs in the background.
"""
