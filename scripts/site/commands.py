"""The reference of the command, from the command itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

from typer.main import get_command


def page() -> str:
    """Every command with its arguments and options."""
    from efl.cli import app

    return "\n\n".join(_sections(get_command(app), "efl"))


def _sections(command: Any, name: str) -> Iterator[str]:
    """A section for a command, and for each below it."""
    below = getattr(command, "commands", {})
    level = "#" * len(name.split())
    if name != "efl":
        yield f"{level} `{name}`\n\n{command.help or ''}"
    params = [param for param in command.params if param.name not in ("help", *COMPLETION)]
    if params and (name != "efl" or not below):
        yield f"```text\n{name} {' '.join(_usage(param) for param in params)}\n```"
        rows = [_row(param, _help(param, command)) for param in params]
        yield "\n".join(["| argument, option | | default |", "|---|---|---|", *rows])
    for key, one in below.items():
        yield from _sections(one, f"{name} {key}")


COMPLETION = ("install_completion", "show_completion")


def _usage(param: Any) -> str:
    if param.param_type_name == "argument":
        word = _metavar(param)
        return word if param.required else f"[{word}]"
    return f"[{param.opts[0]}]" if param.is_flag else f"[{param.opts[0]} {_metavar(param)}]"


def _metavar(param: Any) -> str:
    choices = getattr(param.type, "choices", None)
    if param.metavar or not choices:
        default = param.name if param.param_type_name == "argument" else param.type.name
        return str(param.metavar or default).upper().strip("_").replace("INTEGER RANGE", "N").replace("INTEGER", "N")
    return "|".join(map(str, choices))


def _help(param: Any, command: Any) -> str:
    """What is said of a parameter; click from 8.4 on forgets it of arguments, so look where it was written."""
    hints = get_type_hints(command.callback, include_extras=True)
    written = [getattr(one, "help", None) for one in getattr(hints.get(param.name), "__metadata__", ())]
    return " ".join(str(param.help or next(filter(None, written), "")).split()).replace("|", "\\|")


def _row(param: Any, said: str) -> str:
    names = [_metavar(param)] if param.param_type_name == "argument" else [*param.opts, *param.secondary_opts]
    default = param.opts[0] if param.default is True else param.default
    shown = "" if default in (None, False, (), []) or callable(default) or param.required else f"`{default}`"
    return f"| {', '.join(f'`{name}`' for name in names)} | {said} | {shown} |"
