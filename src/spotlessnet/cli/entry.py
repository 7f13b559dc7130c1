"""The entry point: every way to end has its exit code and one line on stderr.

0    done                                    5    a number or a system that did not come out
1    the audit says: not forgotten           6    the audit cannot tell
2    the command was not understood          7    a digest does not match
3    a file, an id or a shape is wrong       8    refused: it is time to retrain
4    disk, memory or permission              9    the scrubbed network was ruined
70   a mistake of this tool                  130  interrupted
143  told to end (129 by its terminal)
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import typer

from spotlessnet import __version__
from spotlessnet.core.deprecated import GOES, arguments_now

DEBUG: ContextVar[bool] = ContextVar("debug", default=False)
"""Whether tracebacks are wanted."""

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

ENDED = {130: "interrupted", 143: "terminated", 129: "hung up"}
"""What ended a command from outside: 128 and the number of the signal."""

HEARD: ContextVar[int] = ContextVar("heard", default=0)
"""The signal that ended the command, where it was not Control-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code; nothing is raised."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        print(__version__)
        return 0
    with _as_interrupts([] if given[:1] in LIGHT else ["SIGTERM", "SIGHUP"]):
        return _main(given)


@contextmanager
def _as_interrupts(names: Sequence[str]) -> Iterator[None]:
    """Let these signals end the command as Control-C does: by themselves they would leave weights without a receipt.

    Job queues and service managers send them. One that is ignored stays ignored.
    """
    token = HEARD.set(0)
    main_alone = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in names if main_alone and hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]

    def hear(number: int, frame: object) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # what was begun is cleared undisturbed
        HEARD.set(number)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        HEARD.reset(token)


def _main(given: list[str]) -> int:
    token = DEBUG.set("--debug" in given)
    try:
        _sign_of_life(given)
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


def _sign_of_life(given: list[str]) -> None:
    """Say at once that something happens: torch takes seconds to load. Nothing where it is loaded already."""
    # Nothing of torch is imported above, so that this comes first.
    if "torch" in sys.modules or {"-q", "--quiet"} & {*given} or given[:1] in LIGHT:
        return
    print(printable(" ".join(["spotless", *given[:1]]))[:40] + ": loading torch", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    r"""One line without control characters, whatever a file or its name put there.

    >>> printable("a\x1b[31m\nb")
    'a?[31m b'
    """
    joined = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else "?" for c in joined)


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
    2 usage, 3 bad input, 4 environment, 5 numerical, 6 inconclusive, 7 integrity, 8 retrain now, 9 damage,
    130 interrupted, 143 terminated, 70 internal.
    """


def _without_commands() -> typer.Typer:
    return typer.Typer(
        name="spotless",
        help="Make a trained network forget, and prove what is left.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )


@cache
def application() -> typer.Typer:
    """All commands, in the order in which a person meets them.

    They are imported late: whatever fails on the way ends with its exit code and one line, as all else does.
    """
    from spotlessnet.cli import (
        auditing,
        comparing,
        completing,
        demonstrating,
        forgettable,
        inspecting,
        listing,
        precomputing,
        purging,
        replaying,
        reproducing,
        scrubbing,
        serving,
        signing,
        verifying,
    )

    app = _without_commands()
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
        "sign": signing.sign,
        "keys": signing.keys,
        "replay": replaying.replay,
        "purge": purging.purge,
        "serve": serving.serve,
        "request": serving.request,
        "completion": completing.completion,
    }
    for name, command in commands.items():
        app.command(name)(command)
    return app


LIGHT = (["serve"], ["request"])
"""Commands of a desk, which answers calls and lets workers do the rest: they are run without importing torch."""


@cache
def desk_commands() -> typer.Typer:
    """These alone."""
    from spotlessnet.cli import serving

    app = _without_commands()
    app.callback()(about)
    app.command("serve")(serving.serve)
    app.command("request")(serving.request)
    return app


@cache
def _command(is_light: bool) -> Any:
    command = typer.main.get_command(desk_commands() if is_light else application())
    for one in (command, *getattr(command, "commands", {}).values()):
        for option in one.params:
            if getattr(option, "is_flag", False):
                option.metavar = ""  # newer versions of typer show "<bool>", and whoever reads that gives a value
    return command


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


def _say_repeated(given: list[str]) -> None:
    """Say which of several values counts, where another would be lost without a word: a list of rows that must go."""
    if {"-q", "--quiet"} & set(given):
        return
    for flag in ("--forget", "--method"):
        values = [after for word, after in pairwise(given) if word == flag]
        values += [word.partition("=")[2] for word in given if word.startswith(f"{flag}=")]
        if len(set(values)) > 1:
            text = f"{flag} takes one value, but {len(values)} were given: the last one counts."
            print(f"warning: {printable(text)}", file=sys.stderr)


def _run(given: list[str]) -> int:
    _say_repeated(given)
    try:
        code = _command(given[:1] in LIGHT).main(args=given, prog_name="spotless", standalone_mode=False)
    except SystemExit as e:
        code = e.code
    return code if isinstance(code, int) else 0


def _meaning(error: Exception) -> tuple[int, str]:
    """Exit code and line for anything that can come up."""
    # By their names: torch may not be loaded yet, and typer may carry a copy of click with classes of its own.
    kinds = {base.__name__ for base in type(error).__mro__}
    if "SpotlessError" in kinds:
        return error.exit_code, str(error)  # type: ignore[attr-defined]  # every such class has one
    if "NoArgsIsHelpError" in kinds:
        return 2, "no command was given. `spotless --help` shows them."
    if "ClickException" in kinds:
        told = error.format_message().rstrip()  # type: ignore[attr-defined]  # click's own
        where = getattr(getattr(error, "ctx", None), "command_path", "spotless")
        told += ("" if told.endswith((".", "?", "!")) else ".") + _as_recipe(error)
        return 2, f"{told} `{where} --help` shows how."
    if "Exit" in kinds:
        return int(getattr(error, "exit_code", 0)), ""
    if "Abort" in kinds:
        return 130, ""
    if kinds & {"MemoryError", "OutOfMemoryError"} or "not enough memory" in str(error):
        return 4, "the memory of this machine did not suffice. Take a smaller batch or another method (see --dry-run)."
    if isinstance(error, BrokenPipeError):
        # Whoever read stdout has left; Python must not complain about that when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0, ""
    if isinstance(error, OSError):
        return 4, f"{error.filename or 'the system'}: {error.strerror or error}. Check disk and permissions."
    if (where := _raised_by_own(error)) is not None:
        return 3, f"{where}: {type(error).__name__}: {error}. This is code that the case names; --debug shows where."
    if isinstance(error, ImportError):
        return 4, f"a package is missing or broken ({error}). Install spotlessnet anew, with torch: see README."
    if kinds & {"LinAlgError", "_LinAlgError"}:
        return (
            5,
            f"a matrix could not be taken apart: {str(error)[:200]} Check weights, memory and data, or add damping.",
        )
    if isinstance(error, OverflowError):
        return 5, f"a number became larger than numbers can be ({error}). Check the settings, then weights and data."
    return 70, f"{type(error).__name__}: {error}. This is a mistake of spotless; --debug shows where."


def _as_recipe(error: Exception) -> str:
    """Where a flag that is missing is given after all: settings of the training have one flag for all of them."""
    told = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    taken = getattr(getattr(getattr(error, "ctx", None), "command", None), "params", ())
    recipe = sys.modules.get("spotlessnet.core.recipe")
    if recipe is None or all(one.name != "recipe" for one in taken) or told not in recipe.Recipe.__dataclass_fields__:
        return ""
    value = "adamw" if told == "optimizer" else "VALUE"
    return f" It is a setting of the training: `--recipe {told}={value}`."


def _raised_by_own(error: Exception) -> str | None:
    """Where in a person's own code an error came up; before a case was read there is no such code."""
    case = sys.modules.get("spotlessnet.requests.case")
    return None if case is None else case.raised_by_own(error)


def _hush() -> None:
    """No bar may stand where an error is told: an exception keeps the loops that it left alive."""
    if (progress := sys.modules.get("spotlessnet.core.progress")) is not None:
        progress.hush()


def _told(code: int) -> int:
    _hush()
    leaving = sys.modules.get("spotlessnet.requests.leaving") if code else None
    left = leaving.told() if leaving is not None else ""
    # Typer turns an interrupt into a mere code, so this is said in one place for all the ways it comes.
    if code == 130:
        code = 128 + (HEARD.get() or signal.SIGINT)
        print(ENDED[code] + ("" if left else ": nothing half-written was left; run it again"), file=sys.stderr)
    if left:
        print(printable(left), file=sys.stderr)
    return code


def _failed(code: int, text: str, error: Exception) -> int:
    _hush()
    if DEBUG.get() and code:
        traceback.print_exception(error)
    if text:
        print(f"error[{WORDS.get(code, code)}]: {printable(text)[:1500]}", file=sys.stderr)
    return code
