"""``ttamer completion``: completion of commands and options for bash, zsh and fish."""

from __future__ import annotations

import argparse
from typing import Any

# The shells that have a completion script.
SHELLS = ("bash", "zsh", "fish")


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description="Print a completion script. bash: add 'source <(ttamer completion bash)' to "
        "~/.bashrc; zsh: the same with zsh, in ~/.zshrc; fish: ttamer completion fish > "
        "~/.config/fish/completions/ttamer.fish",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    from ttamer.cli import build_parser

    words = _words(build_parser())
    print(_fish(words) if args.shell == "fish" else _bash(words, zsh=args.shell == "zsh"))


def _words(parser: argparse.ArgumentParser, path: str = "") -> dict[str, list[tuple[str, str]]]:
    """Return, for each command and subcommand, the words that may follow, with their help."""
    found: dict[str, list[tuple[str, str]]] = {path: []}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, child in action.choices.items():
                found[path].append((name, helps.get(name, "")))
                found.update(_words(child, f"{path} {name}".strip()))
        elif action.option_strings:
            found[path].append((action.option_strings[-1], action.help or ""))
        elif action.choices:
            found[path] += [(str(choice), "") for choice in action.choices]
    return found


def _bash(words: dict[str, list[tuple[str, str]]], *, zsh: bool) -> str:
    cases = "\n".join(
        f'    "{path}") words="{" ".join(word for word, _ in following)}";;'
        for path, following in words.items()
    )
    head = "autoload -Uz bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_ttamer() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "${{path:+$path }}$word" in
      {" | ".join(f'"{path}"' for path in words if path)}) path="${{path:+$path }}$word";;
    esac
  done
  case "$path" in
{cases}
  esac
  COMPREPLY=()
  for word in $words; do
    [[ "$word" == "$current"* ]] && [[ "$word" != -* || "$current" == -* ]] && COMPREPLY+=("$word")
  done
}}
complete -o default -F _ttamer ttamer"""


def _fish(words: dict[str, list[tuple[str, str]]]) -> str:
    lines = ["complete -c ttamer -f -n __fish_use_subcommand"]
    for path, following in words.items():
        *_, last = path.split() or [""]
        where = f"__fish_seen_subcommand_from {last}" if path else "__fish_use_subcommand"
        for word, text in following:
            kind = f"-l {word.removeprefix('--')}" if word.startswith("--") else f"-a {word}"
            note = " ".join(text.replace("%%", "%").split()).replace("'", "\\'")
            lines.append(f"complete -c ttamer -n '{where}' {kind} -d '{note}'")
    return "\n".join(lines)
