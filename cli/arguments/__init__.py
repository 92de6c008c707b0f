"""The options of all commands: parsers, values, option classes.

Imported at every start, so nothing here imports trio or the clients at the top.
"""
