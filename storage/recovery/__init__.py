"""What happens between opening the files and serving: torn tails, missing units, queues built again.

Not used after the start, except that retention trims queues by the same rules.
"""
