"""One class for each family of requests: decode, use the tables and the store, answer.  None of them awaits.

``table`` maps request codes to their methods.
"""
