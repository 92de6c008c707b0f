"""Administration: topics, groups, offsets, messages, dead letters.

Each call sends requests; nothing runs in the background.
"""
