"""The entry point: every way to end has its exit code and one line on stderr.

0    done                                    5    a number or a system that did not come out
1    the audit says: not forgotten           6    the audit cannot tell
2    the command was not understood          7    a digest does not match
3    a file, an id or a shape is wrong       8    refused: it is time to retrain
4    disk, memory or permission              9    the scrubbed network was ruined
70   a mistake of this tool                  130  interrupted
"""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import torch
import typer

from spotlessnet import __version__
from spotlessnet.cli.common import DEBUG, printable
from spotlessnet.core.deprecated import GOES, arguments_now
from spotlessnet.core.errors import SpotlessError
from spotlessnet.requests.case import raised_by_own

WORDS = {
    2: "usage",
    3: "bad input",
    4: "environment",
    5: "numerical",
    7: "integrity",
    8: "retrain now",
    9: "damage",
    70: "internal",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code; nothing is raised."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    token = DEBUG.set("--debug" in given)
    try:
        with warnings.catch_warnings():
            if not DEBUG.get():
                warnings.simplefilter("ignore")
            _say_old_names()
            return _told(_run(arguments_now(given)))
    except Exception as error:
        return _told(_failed(*_meaning(error), error))
    except KeyboardInterrupt:
        return _told(130)
    finally:
        DEBUG.reset(token)


def _version(wanted: bool) -> bool:
    if wanted:
        print(__version__)
        raise typer.Exit
    return wanted


def about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Make a trained network forget, and prove what is left.

    Begin with [bold]spotless demo[/bold]. Results go to stdout, talk to stderr; exit codes: 0 done, 1 not forgotten,
    2 usage, 3 bad input, 4 environment, 5 numerical, 6 inconclusive, 7 integrity, 9 damage, 130 interrupted,
    70 internal.
    """


@cache
def application() -> typer.Typer:
    """All commands, in the order in which a person meets them."""
    # Late: whatever fails while they are imported ends with its exit code and one line, as all else does.
    from spotlessnet.cli import (
        auditing,
        comparing,
        demonstrating,
        forgettable,
        inspecting,
        listing,
        precomputing,
        purging,
        reproducing,
        scrubbing,
        verifying,
    )

    app = typer.Typer(
        name="spotless",
        help="Make a trained network forget, and prove what is left.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(about)
    commands: dict[str, Callable[..., Any]] = {
        "demo": demonstrating.demo,
        "scrub": scrubbing.scrub,
        "train": forgettable.train,
        "forget": forgettable.forget,
        "audit": auditing.audit,
        "precompute": precomputing.precompute,
        "compare": comparing.compare,
        "reproduce": reproducing.reproduce,
        "list": listing.list_,
        "inspect": inspecting.inspect,
        "verify": verifying.verify,
        "purge": purging.purge,
    }
    for name, command in commands.items():
        app.command(name)(command)
    return app


@cache
def _command() -> Any:
    return typer.main.get_command(application())


def _say_old_names() -> None:
    """One line for each old name that was used; whatever else warns goes on as it did."""
    show = warnings.showwarning
    said = set[str]()
    warnings.filterwarnings("always", message=f".*{GOES}", category=DeprecationWarning)

    def shown(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        text = str(message)
        if not (issubclass(category, DeprecationWarning) and text.endswith(GOES)):
            show(message, category, *where, **more)
        elif text not in said:
            said.add(text)
            print(f"warning: {printable(text)}", file=sys.stderr)

    warnings.showwarning = shown


def _run(given: list[str]) -> int:
    try:
        code = _command().main(args=given, prog_name="spotless", standalone_mode=False)
    except SystemExit as e:
        code = e.code
    return code if isinstance(code, int) else 0


def _meaning(error: Exception) -> tuple[int, str]:
    """Exit code and line for anything that can come up."""
    if isinstance(error, SpotlessError):
        return error.exit_code, str(error)
    # Typer may carry a copy of click with classes of its own, so these are told by their names.
    kinds = {base.__name__ for base in type(error).__mro__}
    if "NoArgsIsHelpError" in kinds:
        return 2, "no command was given. `spotless --help` shows them."
    if "ClickException" in kinds:
        return 2, f"{error.format_message()} `spotless --help` shows how."  # type: ignore[attr-defined]  # click's own
    if "Exit" in kinds:
        return int(getattr(error, "exit_code", 0)), ""
    if "Abort" in kinds:
        return 130, ""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "not enough memory" in str(error):
        return 4, "the memory of this machine did not suffice. Take a smaller batch or another method (see --dry-run)."
    if isinstance(error, BrokenPipeError):
        # Whoever read stdout has left; Python must not complain about that when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0, ""
    if isinstance(error, OSError):
        return 4, f"{error.filename or 'the system'}: {error.strerror or error}. Check disk and permissions."
    if (where := raised_by_own(error)) is not None:
        return 3, f"{where}: {type(error).__name__}: {error}. This is code that the case names; --debug shows where."
    if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # missing from the stubs
        return (
            5,
            f"a matrix could not be taken apart: {str(error)[:200]} Check weights, memory and data, or add damping.",
        )
    if isinstance(error, OverflowError):
        return 5, f"a number became larger than numbers can be ({error}). Check the settings, then weights and data."
    return 70, f"{type(error).__name__}: {error}. This is a mistake of spotless; --debug shows where."


def _told(code: int) -> int:
    # Typer turns an interrupt into a mere code, so this is said in one place for all the ways it comes.
    if code == 130:
        print(
            "interrupted: nothing half-written was left; run it again, with --resume where the command has it",
            file=sys.stderr,
        )
    return code


def _failed(code: int, text: str, error: Exception) -> int:
    if DEBUG.get() and code:
        traceback.print_exception(error)
    if text:
        print(f"error[{WORDS.get(code, code)}]: {printable(text)[:1500]}", file=sys.stderr)
    return code
