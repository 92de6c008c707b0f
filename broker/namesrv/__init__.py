"""The name server's tables.

Import from the modules.
"""
