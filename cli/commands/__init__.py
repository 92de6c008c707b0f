"""One module for each command of ``triomq``; imported only when that command runs."""
