"""The command line: one thin file per verb, found by name.

A file `cli/VERB.py` offers either `command`, a function with Typer parameters, or `app`, a Typer
application with verbs of its own. `CONTEXT` (optional) holds Typer's context settings. Only the file of
the verb that is asked for is imported; all are for the help page.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import sys
from typing import Any, NoReturn

import typer

from penstock import __version__
from penstock.errors import BadInput, PenstockError

#: what Typer raises for options and arguments that it cannot use (it has no public name)
_UsageError: Any = typer.BadParameter.__base__

_HELP = "One experiment platform for the storage and I/O performance of data systems."

#: the order of the help page: as a user meets the verbs
_ORDER = (
    "doctor init run plan ls rm profile disk nodes trace export import replay monitor analyse compare report "
    "plot platform predict explore learn serve undo"
).split()


def verbs() -> list[str]:
    """Names of all verbs, in the order of the help page."""
    found = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}
    return [v for v in _ORDER if v in found] + sorted(found - set(_ORDER))


def _build(names: list[str]) -> typer.Typer:
    root = typer.Typer(
        name="penstock",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @root.callback(invoke_without_command=True)
    def _root(
        version: bool = typer.Option(False, "--version", help="Print the version and leave."),
    ) -> None:
        if version:
            print(__version__)
            raise typer.Exit

    for name in names:
        module = importlib.import_module(f"{__name__}.{name}")
        if hasattr(module, "app"):
            root.add_typer(module.app, name=name)
        else:
            settings = getattr(module, "CONTEXT", None)
            root.command(name=name, context_settings=settings)(module.command)
    return root


def main() -> None:
    """Runs the command line and exits with its status (0 done, 1 failed, 2 bad input, 3 finding)."""
    known = verbs()
    asked = next((a for a in sys.argv[1:] if not a.startswith("-")), None)
    try:
        status = _build([asked] if asked in known else known)(
            prog_name="penstock", standalone_mode=False
        )
        _must_be_closed()
        sys.exit(status if isinstance(status, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # nothing was asked for: the help page
        else:
            _report(BadInput(_in_one_line(error)))
        sys.exit(error.exit_code)
    except typer.Abort:
        print("penstock: stopped", file=sys.stderr)
        sys.exit(1)
    except PenstockError as error:
        _report(error)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        _stopped()
    except RuntimeError as error:
        # an interrupt inside __set_name__, while a class is made, comes wrapped
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        _stopped()
    except BrokenPipeError:  # whoever read us has enough
        _forget_output()
        sys.exit(1)
    except OSError as error:
        _report(PenstockError(_what_failed(error)))
        _forget_output()
        sys.exit(1)
    except MemoryError:
        _report(PenstockError("there is not memory enough for this"))
        sys.exit(1)


def _must_be_closed() -> None:
    """Raises PenstockError for entries of the undo journal that could not be closed."""
    journal = sys.modules.get("penstock.host.journal")  # a verb that changes no host does without
    left = journal.unclosed() if journal is not None else None
    if left is not None:
        raise left


def _stopped() -> NoReturn:
    """The user's Ctrl-C: one line, and the status that shells expect of it."""
    print("penstock: stopped", file=sys.stderr)
    # an interrupt inside exec(text), as dataclasses are made, leaves a mark at which
    # `python -m` ends by the signal instead of by our status; the next exec(text) clears it
    exec("pass")
    sys.exit(130)


def _in_one_line(error: Any) -> str:
    """`trace: No such option: --wrong; see penstock trace --help`."""
    verbs_asked = error.ctx.command_path.split()[1:] if error.ctx else []
    said = "; ".join(line.strip() for line in error.format_message().splitlines() if line.strip())
    where = f"{' '.join(verbs_asked)}: " if verbs_asked else ""
    return f"{where}{said.rstrip('.')}; see {' '.join(['penstock', *verbs_asked, '--help'])}"


def _what_failed(error: OSError) -> str:
    """`/data/x: No space left on device`; without a file it was what is printed."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else f"cannot go on: {reason}"


def _forget_output() -> None:
    """What could not be printed is not tried again while Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: PenstockError) -> None:
    """One clear message on stderr; with `--json`, one object on stdout as well."""
    if "--json" in sys.argv and "--" not in sys.argv[: sys.argv.index("--json")]:
        mistakes = [vars(m) for m in error.mistakes] if isinstance(error, BadInput) else []
        with contextlib.suppress(OSError):
            print(json.dumps({"error": str(error), "mistakes": mistakes}))
    for line in str(error).splitlines() or [type(error).__name__]:
        print(f"penstock: {line}", file=sys.stderr)
