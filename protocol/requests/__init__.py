"""One header class for each request code and its response, one module for each family.

Declarations only: ``wire.headers`` encodes and decodes them.
"""
