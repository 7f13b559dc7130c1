"""`spotless serve` and `spotless request`: a deletion desk, and a way to ask it."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.console import AsJson, Console, Debug, Quiet
from spotlessnet.core.errors import NeedError, SettingError

Folder = Annotated[Path, typer.Option("--folder", help="Where the desk keeps its database, keys and networks.")]
Host = Annotated[str, typer.Option("--host", help="The address to listen on. Beyond this machine, put TLS before it.")]
Port = Annotated[int, typer.Option("--port", help="The port to listen on.", min=1, max=65535)]
Database = Annotated[
    str | None,
    typer.Option("--database", help="postgresql://… for several workers. Unless said: a file in --folder.",
                 envvar="SPOTLESS_DATABASE"),
]  # fmt: skip
DeskKey = Annotated[
    Path | None, typer.Option("--desk-key", help="The file of the key for ids. Unless said: made in --folder.")
]
SigningKey = Annotated[
    Path | None, typer.Option("--key", help="The file of the key that signs receipts. Unless said: made in --folder.")
]
Trainings = Annotated[
    list[Path] | None,
    typer.Option("--trainings", help="A folder below which trainings may be registered over HTTP; may be repeated."),
]
Register = Annotated[
    list[str] | None,
    typer.Option(
        "--register",
        metavar="NAME=FOLDER",
        help="Register a recorded training, if no model has that name; ,test=file.py:test adds test rows.",
    ),
]
WebhooksTo = Annotated[
    list[str] | None,
    typer.Option(
        "--webhooks-to",
        metavar="NETWORK",
        help="A network that webhooks may lead to beside public addresses, such as 10.0.0.0/8; may be repeated.",
    ),
]
MlflowUri = Annotated[
    str | None,
    typer.Option("--mlflow", metavar="URI", help="Publish in MLflow's model registry too: its tracking address."),
]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant of --register; made at the first start.")]
Worker = Annotated[str, typer.Option("--worker", help="The name of this process among several on one database.")]
Demo = Annotated[bool, typer.Option("--demo", help="A model of digits, three requests, and pages to click.")]

Action = Annotated[str, typer.Argument(help="send, status or list.")]
Which = Annotated[str | None, typer.Argument(help="For status: the request.")]
Address = Annotated[str, typer.Option("--desk", help="The desk's address.", envvar="SPOTLESS_DESK")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="A file with the token; otherwise SPOTLESS_TOKEN is read.")
]
Key = Annotated[str | None, typer.Option("--key", help="For send: your own name for the request.")]
Forget = Annotated[
    Path | None, typer.Option("--forget", help="For send: the list of ids: .csv, .json, .jsonl or .txt.")
]
IdColumn = Annotated[str, typer.Option("--id-column", help="The list's column of ids.")]
Kind = Annotated[str, typer.Option("--kind", help="For list: open, late, closed or all.")]
Receipt = Annotated[Path | None, typer.Option("--receipt", help="For status: write the signed receipt here.")]


def serve(
    folder: Folder = Path("desk"),
    host: Host = "127.0.0.1",
    port: Port = 8642,
    database: Database = None,
    desk_key: DeskKey = None,
    key: SigningKey = None,
    trainings: Trainings = None,
    webhooks_to: WebhooksTo = None,
    mlflow: MlflowUri = None,
    register: Register = None,
    tenant: Tenant = "main",
    worker: Worker = "local",
    demo: Demo = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    r"""Run a deletion desk: requests come in over HTTP, and published models and signed receipts go out.

    [bold]spotless serve --demo[/bold]

    [bold]spotless serve --folder desk/ --register digits=run/[/bold]

    Needs the extra: `pip install 'spotlessnet\[serve]'`. The first start prints a token, once.
    Registering a training imports its code, so it runs.
    """
    if find_spec("dbos") is None or find_spec("fastapi") is None:
        raise NeedError("`spotless serve` needs packages that are not installed. pip install 'spotlessnet[serve]'.")
    from spotlessnet.serve.running import Run, run

    wanted = Run(
        folder=folder,
        host=host,
        port=port,
        database=database,
        desk_key=desk_key,
        signing_key=key,
        roots=tuple(trainings or ()),
        webhooks_to=tuple(webhooks_to or ()),
        mlflow=mlflow,
        register=tuple(register or ()),
        tenant=tenant,
        worker=worker,
    )
    console = Console(json, quiet)
    if demo:
        from spotlessnet.serve.demo import run_demo

        return run_demo(wanted, console.say)
    return run(wanted, console.say)


def request(
    action: Action,
    which: Which = None,
    desk: Address = "http://127.0.0.1:8642",
    token_file: TokenFile = None,
    key: Key = None,
    forget: Forget = None,
    id_column: IdColumn = "id",
    kind: Kind = "open",
    receipt: Receipt = None,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Ask a deletion desk: send a request, look at one, or list them.

    [bold]spotless request send --key case-7 --forget forget.csv[/bold]

    [bold]spotless request status 8f1c… --receipt case-7.bundle.json[/bold]

    Sending the same key and ids again is safe: it is the same request.
    """
    from spotlessnet.serve.client import Client

    client = Client(desk, _token(token_file))
    if action == "send":
        found = client.send(*_asked(key, forget, id_column))
        told, lines = {"status": "sent", **found}, [found["id"]]
    elif action == "status":
        if which is None:
            raise NeedError("`spotless request status` needs the request that `send` gave.")
        found = client.status(which)
        if receipt is not None:
            _write_receipt(receipt, client.receipt(which))
        told, lines = {"status": found["state"], **found}, [f"{found['state']}, due {found['due']}"]
    elif action == "list":
        found = client.list(kind)
        told = {"status": "done", **found}
        lines = [f"{one['id']}  {one['state']:<10} due {one['due']}" for one in found["requests"]]
    else:
        raise SettingError(f"`spotless request` knows send, status and list, but got {action[:40]!r}.")
    Console(json, quiet).give(told, lines)
    return 0


def _token(file: Path | None) -> str:
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    if token := os.environ.get("SPOTLESS_TOKEN", ""):
        return token
    raise NeedError("A token is needed: --token-file, or the environment variable SPOTLESS_TOKEN.")


def _asked(key: str | None, forget: Path | None, column: str) -> tuple[str, list[str]]:
    from spotlessnet.core.id_lists import listed_ids

    if key is None or forget is None:
        raise NeedError("`spotless request send` needs --key, your own name for the request, and --forget, the list.")
    return key, listed_ids(forget, column)


def _write_receipt(path: Path, content: dict[str, object]) -> None:
    from spotlessnet.core.files import write_whole
    from spotlessnet.proof.spelling import as_bytes

    write_whole(path, as_bytes(content), shared=True)
