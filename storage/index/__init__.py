"""The message index: files of hash slots that find messages by key.

It follows the commit log on its own; nothing here is on the path of an append.
"""
