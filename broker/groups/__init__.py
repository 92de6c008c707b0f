"""State of groups: members, subscriptions, queue locks, committed offsets, settings.

Plain classes without I/O; requests reach them through ``processors``.
"""
