"""The command line: one thin file per verb, and one row of a table.

A file `cli/VERB.py` offers either `command`, a function with Typer parameters, or `app`, a Typer
application with verbs of its own. `CONTEXT` (optional) holds Typer's context settings. The help page and
completion go by the table; a file is imported when its verb is asked for, and imports at its top only
what its options need: libraries and the other packages are imported where they are used. What verbs share
is in files with an underscore. Verbs of parts and of other packages are rows of `penstock.plugins.COMMANDS`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import typer
from typer import _completion_classes, completion
from typer.core import TyperGroup
from typer.main import get_group

from penstock.cli._failure import tell
from penstock.errors import BadInput, PenstockError
from penstock.plugins import COMMANDS, verbs_of_parts
from penstock.terminal import escaped_output, say

#: optional libraries of some verbs, and the extra of the package that installs them
EXTRAS = {
    "pg8000": "monitor",
    "cramjam": "monitor",
    "h11": "monitor",
    "pysnmp": "monitor",
    "pydoe": "design",
    "fastapi": "serve",
    "uvicorn": "serve",
    "httpx": "serve,monitor",
    "optuna": "explore",
    "sklearn": "learn",
    "threadpoolctl": "learn",
    "distributed": "hosts",
    "dask": "hosts",
    "cryptography": "serve,hosts",
}

#: base class of Typer's usage errors (it has no public name)
_UsageError: Any = typer.BadParameter.__base__

_HELP = "One experiment platform for the storage and I/O performance of data systems."

#: core verbs by group, in the order of the help page, each with its line
CORE = {
    "Run a study": {
        "doctor": "Check which features this host supports, and how to enable the others.",
        "init": "Write a commented study file for your program.",
        "plan": "Show the planned runs: order, aliases, power, time.",
        "run": "Plan, run, observe, analyse and report a study; continue after a crash.",
    },
    "Look at results": {
        "report": "Write the report of a study or a trace again.",
        "plot": "Draw a figure to a file or on the terminal.",
        "analyse": "Repeat the analysis of recorded runs: effects, findings, verdicts.",
        "compare": "Compare traces, treatments or experiments: differences and ties.",
    },
    "Watch a program": {
        "trace": "Trace the file I/O of a program: access patterns, waits, advice.",
        "replay": "Replay the calls of a trace on other storage.",
        "export": "Export runs as one file, or a trace for Perfetto, Paraver or fio.",
        "import": "Import shared runs, traces of blktrace, Darshan or fio, or metrics.",
    },
    "Emulate storage and clusters": {
        "profile": "Create a profile of a device, from a measurement or a table.",
        "disk": "Emulate a disk without a study; change it while it is in use.",
        "nodes": "Start virtual nodes with emulated disks and links.",
    },
    "Predict and choose": {
        "platform": "Describe the platform of a prediction; start from this host.",
    },
    "Housekeeping": {
        "ls": "List studies and runs, their state and size.",
        "rm": "Remove a study or some of its runs.",
        "undo": "Undo changes to the host after a crash.",
    },
}

#: verbs of the core and of parts, by group
GROUPS = {group: rows | verbs_of_parts(group) for group, rows in CORE.items()}

#: the line of each verb
VERBS = {verb: line for rows in GROUPS.values() for verb, line in rows.items()}


class _Group(TyperGroup):
    """Verbs below a verb."""

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)
        option.default = False  # Boolean defaults skip a check that would load Pydantic
        return option

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, one.get_short_help_str(1000)) for name, one in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Verbs(_Group):
    """The verbs by group; what Typer knows of each is its row until it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *added()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        return _command(cmd_name) if own is None and cmd_name in added() else own

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        verb, _, rest = super().resolve_command(ctx, args)
        return verb, None if verb is None else _command(verb), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, rows in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(rows.items()))
        if names := added():
            rows = {name: COMMANDS.load(name).HELP for name in names}
            with formatter.section("From other packages"):
                formatter.write_dl(list(rows.items()))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _stopped()


def added() -> list[str]:
    """Names of the verbs of other packages."""
    return [name for name in COMMANDS if name not in VERBS]


def _build() -> typer.Typer:
    _completion_classes.completion_init()
    # our help has no markup for Rich to remove, which is slow to load
    _completion_classes._sanitize_help_text = lambda text: text
    root = typer.Typer(
        name="penstock",
        cls=_Verbs,
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,  # added below as options with Boolean defaults
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )

    @root.callback(invoke_without_command=True)
    def _root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
        install: bool = typer.Option(
            False,
            "--install-completion",
            callback=completion.install_callback,
            help="Install completion for the current shell.",
        ),
        show: bool = typer.Option(
            False,
            "--show-completion",
            callback=completion.show_callback,
            help="Print what --install-completion would install.",
        ),
    ) -> None:
        if version:
            from penstock.version import version as installed

            print(installed())
            raise typer.Exit

    for verb, line in VERBS.items():
        root.command(verb, short_help=line)(_root)
    return root


def _command(verb: str) -> Any:
    """Typer's command of the verb's file."""
    core = any(verb in rows for rows in CORE.values())
    module = importlib.import_module(f"{__name__}.{verb}") if core else COMMANDS.load(verb)
    holder = typer.Typer(rich_markup_mode=None)
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=verb, cls=_Group)
    else:
        settings = getattr(module, "CONTEXT", None)
        holder.command(name=verb, context_settings=settings)(module.command)
    return get_group(holder).commands[verb]


def main() -> None:
    """Run the command line and exit with its status (0 done, 1 failed, 2 bad input, 3 finding)."""
    with escaped_output():
        _main()


def _main() -> NoReturn:
    try:
        status = _build()(prog_name="penstock", standalone_mode=False)
        _must_be_closed()
        sys.exit(status if isinstance(status, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # no arguments: print the help page
        else:
            _report(BadInput(_in_one_line(error)))
        sys.exit(error.exit_code)
    except typer.Abort:
        say("stopped")
        sys.exit(1)
    except PenstockError as error:
        _report(error)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        _stopped()
    except RuntimeError as error:
        if not _interrupted(error):
            raise
        _stopped()
    except BrokenPipeError:  # the reader has closed the pipe
        _forget_output()
        sys.exit(1)
    except OSError as error:
        _report(PenstockError(_what_failed(error)))
        _forget_output()
        sys.exit(1)
    except ImportError as error:
        if _interrupted(error):
            _stopped()
        lacking = _what_is_not_installed(error)
        if lacking is None:
            raise
        _report(PenstockError(lacking))
        sys.exit(1)
    except MemoryError:
        _report(PenstockError("there is not memory enough for this"))
        sys.exit(1)


def _must_be_closed() -> None:
    """Raises PenstockError for entries of the undo journal that could not be closed."""
    journal = sys.modules.get(
        "penstock.host.journal.journal"
    )  # not imported by verbs that change no host
    error = journal.unclosed() if journal is not None else None
    if error is not None:
        raise error


def _interrupted(error: BaseException | None) -> bool:
    """True for an error that wraps an interrupt, as `__set_name__` and compiled modules that load do."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _stopped() -> NoReturn:
    """The user's Ctrl-C: one line, and the status that shells expect of it."""
    say("stopped")
    # an interrupt inside exec(text), as in the creation of dataclasses, leaves a flag that makes
    # `python -m` end by the signal instead of our status; the next exec(text) clears it
    exec("pass")
    sys.exit(130)


def _in_one_line(error: Any) -> str:
    """`trace: No such option: --wrong; see penstock trace --help`."""
    verbs = error.ctx.command_path.split()[1:] if error.ctx else []
    message = "; ".join(
        line.strip() for line in error.format_message().splitlines() if line.strip()
    )
    where = f"{' '.join(verbs)}: " if verbs else ""
    return f"{where}{message.rstrip('.')}; see {' '.join(['penstock', *verbs, '--help'])}"


def _what_failed(error: OSError) -> str:
    """`/data/x: No space left on device`; without a file it was what is printed."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else f"cannot go on: {reason}"


def _what_is_not_installed(error: ImportError) -> str | None:
    """Advice on what to install, where it is an optional library or one of the system."""
    library = (error.name or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and library in EXTRAS:
        return f"this needs {library}: pip install 'penstock[{EXTRAS[library]}]'"
    if ".so" in str(error) and "cannot open shared object" in str(error):
        return (
            f"a library of the system is missing: {error}; Debian: apt-get install libelf1 zlib1g"
        )
    return None


def _forget_output() -> None:
    """Drop what could not be printed, so that Python does not try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: PenstockError) -> None:
    """Tells it, as JSON too where penstock (not a command that it runs) was given `--json`."""
    tell(error, "--json" in sys.argv and "--" not in sys.argv[: sys.argv.index("--json")])
