"""Messages and the binary layouts that hold them: records, batches, properties, ids, queue and index units.

No files and no remoting commands.
"""
