"""``triomq completion``: print a script that completes commands and options in bash, zsh or fish."""

from collections.abc import Iterator
from typing import Final

from triomq.cli.arguments.admin_options import CompletionOptions
from triomq.cli.arguments.arguments import build_parser
from triomq.cli.arguments.parser import Parser
from triomq.cli.output import write_text

_SCRIPT: Final = """\
{prefix}_triomq() {{
    local path=triomq word words
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [[ $word == -* ]] || case "$path $word" in {commands}) path="$path $word" ;; esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=()
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}")
}}
complete -o default -F _triomq triomq
"""
_FISH: Final = """\
function _triomq
    set -l path triomq
    for word in (commandline -opc)[2..-1]
        switch "$path $word"
            case {commands}
                set path "$path $word"
        end
    end
    switch $path
{cases}
    end
end
complete -c triomq -a '(_triomq)'
"""
_ZSH: Final = "autoload -Uz bashcompinit && bashcompinit\n"


def run(options: CompletionOptions) -> None:
    """Write the script."""
    found = [(f'"{path}"', words) for path, words in _words("triomq", build_parser())]
    paths = [path for path, _ in found[1:]]
    if options.shell == "fish":
        cases = "\n".join(f"        case {path}\n            printf '%s\\n' {' '.join(words)}" for path, words in found)
        write_text(_FISH.format(commands=" ".join(paths), cases=cases))
        return
    cases = "\n".join(f'    {path}) words="{" ".join(words)}" ;;' for path, words in found)
    prefix = _ZSH if options.shell == "zsh" else ""
    write_text(_SCRIPT.format(prefix=prefix, commands="|".join(paths), cases=cases))


def _words(path: str, parser: Parser) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with the words that may follow it."""
    names = {} if parser.commands is None else parser.commands.choices
    yield path, [*names, *parser.option_names()]
    for name, child in names.items():
        yield from _words(f"{path} {name}", child)
