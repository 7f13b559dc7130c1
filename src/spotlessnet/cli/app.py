"""All commands of `spotless`, in the order in which a person meets them."""

from typing import Annotated

import typer

from spotlessnet import __version__
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


def _version(wanted: bool) -> bool:
    if wanted:
        print(__version__)
        raise typer.Exit
    return wanted


@app.callback()
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


app.command("demo")(demonstrating.demo)
app.command("scrub")(scrubbing.scrub)
app.command("train")(forgettable.train)
app.command("forget")(forgettable.forget)
app.command("audit")(auditing.audit)
app.command("precompute")(precomputing.precompute)
app.command("compare")(comparing.compare)
app.command("reproduce")(reproducing.reproduce)
app.command("list")(listing.list_)
app.command("inspect")(inspecting.inspect)
app.command("verify")(verifying.verify)
app.command("purge")(purging.purge)
