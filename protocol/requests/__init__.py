"""One declared header class for each request code and its response, by family.

Nothing here encodes or decodes by itself: ``wire.headers`` does that from the declarations.
"""
