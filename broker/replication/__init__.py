"""A second copy of the store: what a master sends, and what a slave takes.

Source: store.md 9.
"""
