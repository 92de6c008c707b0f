"""Messages and their binary layouts: records, batches, properties, ids, queue and index units.

No files and no remoting commands.
"""
