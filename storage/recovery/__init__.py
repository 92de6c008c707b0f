"""What runs between opening the files and serving: torn tails, missing units, rebuilt queues.

Not used after the start, except that retention trims queues by the same rules, and a slave writes units like this.
"""
