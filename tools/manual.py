"""docs/man/man1, from the command line and the prose in docs/man/prose: `python tools/manual.py`.

A file `prose/penstock-VERB.roff` begins with text for DESCRIPTION and continues with additional sections.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from penstock import cli

MAN = Path(__file__).parents[1] / "docs" / "man"

_HEAD = '.\\" Made by tools/manual.py of the command line and of docs/man/prose.\n'
_STATUS = (
    "0 done; 1 failed; 2 for input that cannot be used, with what was found and what was expected"
)
_FOUND = "; 3 where\n.B \\-\\-fail\\-on\nfound something"


def pages() -> dict[str, str]:
    """Every page by file name: that of penstock, and one of each verb."""
    texts = {"penstock": _front()} | {f"penstock-{verb}": _page(verb) for verb in cli.VERBS}
    return {f"{name}.1": text for name, text in texts.items()}


def _front() -> str:
    root = typer.main.get_command(cli._build())
    commands = ""
    for group, rows in cli.GROUPS.items():
        commands += f".SS {_text(group)}\n"
        commands += "".join(
            f".TP\n.BR penstock\\-{verb} (1)\n{_text(line)}\n" for verb, line in rows.items()
        )
    body = f".SH COMMANDS\n{commands}{_sections(root)}"
    return _complete_page("penstock", root.help or "", root, body)


def _page(verb: str) -> str:
    command = cli._command(verb)
    body = _sections(command)
    if below := getattr(command, "commands", {}):
        body += ".SH COMMANDS\n"
        for name, subcommand in below.items():
            body += f".SS penstock {_text(verb)} {_text(name)} {_text(_usage(subcommand))}\n"
            body += (
                _paragraphs(subcommand.help or "")
                + _tagged(subcommand, "argument")
                + _tagged(subcommand, "option")
            )
    return _complete_page(f"penstock-{verb}", cli.VERBS[verb], command, body)


def _complete_page(name: str, line: str, command: Any, body: str) -> str:
    prose = MAN / "prose" / f"{name}.roff"
    text = prose.read_text() if prose.exists() else ""
    description, *sections = re.split(r"^(?=\.SH )", text, flags=re.MULTILINE)
    see = next((s for s in sections if s.startswith(".SH SEE ALSO\n")), ".SH SEE ALSO\n")
    sections = [s for s in sections if s != see]
    if name != "penstock":
        see = see.replace("\n", "\n.BR penstock (1),\n", 1)
    see += ".IR docs/commands.md\n" if see.endswith(("ALSO\n", ",\n")) else ""
    if not any(s.startswith(".SH EXIT STATUS\n") for s in sections):
        extra = _FOUND if any(parameter.name == "fail_on" for parameter in command.params) else ""
        sections.append(f".SH EXIT STATUS\n{_STATUS}{extra}; 130 where Ctrl\\-C stopped it.\n")
    return (
        f'{_HEAD}.TH {_text(name.upper())} 1 "" "penstock" "User Commands"\n.ad l\n'
        f".SH NAME\n{_text(name)} \\- {_text(line.rstrip('.'))}\n"
        f".SH SYNOPSIS\n.B {_text(name.replace('-', ' ', 1))}\n{_text(_usage(command))}\n"
        f".SH DESCRIPTION\n{_paragraphs(command.help or '')}"
        f"{'.PP' + chr(10) if description else ''}{description}"
        f"{body}{''.join(sections)}{see}"
    )


def _usage(command: Any) -> str:
    parts = ["[OPTIONS]"]
    for parameter in (p for p in command.params if p.param_type_name == "argument"):
        name = _name(parameter) + ("..." if parameter.nargs == -1 else "")
        parts.append(name if parameter.required else f"[{name}]")
    return " ".join(parts + ["COMMAND ..."] * hasattr(command, "commands"))


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _sections(command: Any) -> str:
    """Arguments, and options by panel, as on the help page."""
    text = ""
    if arguments := _tagged(command, "argument"):
        text += f".SH ARGUMENTS\n{arguments}"
    text += ".SH OPTIONS\n"
    panels = dict.fromkeys(
        getattr(parameter, "rich_help_panel", None) for parameter in command.params
    )
    for panel in [*filter(None, panels), None]:
        heading = f".SS {_text(panel or 'Others')}\n" if any(panels) else ""
        text += heading + _tagged(command, "option", panel)
    return text


def _tagged(command: Any, kind: str, panel: str | None = None) -> str:
    context = typer.Context(command, info_name="penstock", help_option_names=["-h", "--help"])
    text = ""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and parameter.param_type_name == kind and parameter.rich_help_panel == panel:
            tag = _name(parameter) if kind == "argument" else record[0]
            text += f".TP\n.B {_text(tag)}\n{_text(record[1])}\n"
    return text


def _paragraphs(text: str) -> str:
    return ".PP\n".join(f"{_text(' '.join(p.split()))}\n" for p in text.split("\n\n") if p.strip())


def _text(text: str) -> str:
    """Text in roff; text in backquotes is bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return re.sub(r"^(?=[.'])", r"\\&", text)


if __name__ == "__main__":
    for old in (MAN / "man1").iterdir():
        old.unlink()
    for name, text in pages().items():
        (MAN / "man1" / name).write_text(text)
