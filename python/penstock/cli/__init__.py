"""The command line: one thin file per verb, and one row of a table.

A file `cli/VERB.py` offers either `command`, a function with Typer parameters, or `app`, a Typer
application with verbs of its own. `CONTEXT` (optional) holds Typer's context settings. The help page and
completion need the table alone. A file is imported when its verb runs, and imports at its top only what
its options need; functions import libraries and other packages. `shared` has what several verbs use. Verbs
of parts and of other packages are rows of `penstock.plugins.COMMANDS`.
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

from penstock.cli.shared.failure import print_error
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
        rows = [(name, command.get_short_help_str(1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Verbs(_Group):
    """Verbs by group. Typer has only the row of each; the file of a verb is imported when it runs."""

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
            _exit_interrupted()


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
    """Typer command of a verb, from its file."""
    core = any(verb in rows for rows in CORE.values())
    module = importlib.import_module(f"{__name__}.{verb}") if core else COMMANDS.load(verb)
    application = typer.Typer(rich_markup_mode=None)
    if hasattr(module, "app"):
        application.add_typer(module.app, name=verb, cls=_Group)
    else:
        settings = getattr(module, "CONTEXT", None)
        application.command(name=verb, context_settings=settings)(module.command)
    return get_group(application).commands[verb]


def main() -> None:
    """Run the command line and exit with its status (0 done, 1 failed, 2 bad input, 3 finding)."""
    with escaped_output():
        _main()


def _main() -> NoReturn:
    try:
        status = _build()(prog_name="penstock", standalone_mode=False)
        _check_journal_closed()
        sys.exit(status if isinstance(status, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # no arguments: print the help page
        else:
            _report(BadInput(_usage_message(error)))
        sys.exit(error.exit_code)
    except typer.Abort:
        say("stopped")
        sys.exit(1)
    except PenstockError as error:
        _report(error)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        _exit_interrupted()
    except RuntimeError as error:
        if not _interrupted(error):
            raise
        _exit_interrupted()
    except BrokenPipeError:  # the reader has closed the pipe
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _report(PenstockError(_os_error_message(error)))
        _discard_output()
        sys.exit(1)
    except ImportError as error:
        if _interrupted(error):
            _exit_interrupted()
        advice = _missing_library(error)
        if advice is None:
            raise
        _report(PenstockError(advice))
        sys.exit(1)
    except MemoryError:
        _report(PenstockError("out of memory"))
        sys.exit(1)


def _check_journal_closed() -> None:
    """Raise PenstockError for entries of the undo journal that could not be closed."""
    journal = sys.modules.get(
        "penstock.host.journal.journal"
    )  # not imported by verbs that change no host
    error = journal.unclosed() if journal is not None else None
    if error is not None:
        raise error


def _interrupted(error: BaseException | None) -> bool:
    """True for an error caused by a KeyboardInterrupt, as `__set_name__` and compiled modules raise."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _exit_interrupted() -> NoReturn:
    """Exit after Ctrl-C with one line, and the status of SIGINT in shells."""
    say("stopped")
    # an interrupt inside exec(text), as in the creation of dataclasses, leaves a flag that makes
    # `python -m` end by the signal instead of our status; the next exec(text) clears it
    exec("pass")
    sys.exit(130)


def _usage_message(error: Any) -> str:
    """Usage error in one line: `trace: No such option: --wrong; see penstock trace --help`."""
    verbs = error.ctx.command_path.split()[1:] if error.ctx else []
    message = "; ".join(
        line.strip() for line in error.format_message().splitlines() if line.strip()
    )
    prefix = f"{' '.join(verbs)}: " if verbs else ""
    return f"{prefix}{message.rstrip('.')}; see {' '.join(['penstock', *verbs, '--help'])}"


def _os_error_message(error: OSError) -> str:
    """Message such as `/data/x: No space left on device`. An error of stdout has no file."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else f"cannot continue: {reason}"


def _missing_library(error: ImportError) -> str | None:
    """Installation advice for an optional or system library; None for other errors."""
    library = (error.name or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and library in EXTRAS:
        return f"this needs {library}: pip install 'penstock[{EXTRAS[library]}]'"
    if ".so" in str(error) and "cannot open shared object" in str(error):
        return (
            f"a library of the system is missing: {error}; Debian: apt-get install libelf1 zlib1g"
        )
    return None


def _discard_output() -> None:
    """Discard unprinted output, so that Python does not try to print it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: PenstockError) -> None:
    """Print the error; with `--json`, also as JSON. Options of a command that penstock runs do not count."""
    print_error(error, "--json" in sys.argv and "--" not in sys.argv[: sys.argv.index("--json")])
