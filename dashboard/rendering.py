"""Templates to HTML, and the static files, which stay in memory.

Every value is escaped, and a name that a template gets without a value is an error.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from triomq.dashboard import formats

_FOLDER: Final = Path(__file__).parent
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FILTERS: Final = ("number", "rate", "size", "percent", "duration", "when")


class StaticFile(NamedTuple):
    """A file for browsers; ``version`` changes with its contents."""

    content: bytes
    media_type: str
    version: str


def load_static() -> dict[str, StaticFile]:
    """Return the files by name."""
    found = {}
    for path in sorted((_FOLDER / "static").iterdir()):
        content = path.read_bytes()
        media_type = _TYPES.get(path.suffix, "text/plain; charset=utf-8")
        found[path.name] = StaticFile(content, media_type, hashlib.sha256(content).hexdigest()[:12])
    return found


class Renderer:
    """Renders templates.

    Attributes:
        static: the static files by name.
    """

    def __init__(self, pages: Collection[str]) -> None:
        """Load the static files; ``pages`` are the paths to which templates may link."""
        self.static: Final = load_static()
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {name: getattr(formats, name) for name in _FILTERS}
        self._environment.globals |= {
            "to": formats.to,
            "static": self._static_link,
            "NOTHING": formats.NOTHING,
            "has": pages,
        }
        # Blocks that are rendered alone know no macro that their template imports.
        macros = vars(self._environment.get_template("macros.html").module)
        self._environment.globals |= {name: macro for name, macro in macros.items() if not name.startswith("_")}

    async def compile(self) -> None:
        """Compile all templates, so that no visitor waits for it: some take 20 ms."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)
            await trio.lowlevel.checkpoint()

    def _static_link(self, name: str) -> str:
        return f"static/{name}?v={self.static[name].version}"

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        """Return a whole page."""
        return self._environment.get_template(template).render(values)

    def block(self, template: str, values: Mapping[str, Any], name: str = "live") -> str:
        """Return one block of a page."""
        found = self._environment.get_template(template)
        return "".join(found.blocks[name](found.new_context(dict(values))))
