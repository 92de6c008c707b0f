"""Load scripts: ``python -m bench --help``."""
