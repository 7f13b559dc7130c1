"""A nursery of desks that are killed: it imports everything once, so that a new desk takes a second and not ten.

`python -m tests.serve.killed FOLDER [DATABASE]` reads `PORT WORKER` from stdin, forks a desk, and prints its process.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import uvicorn

from spotlessnet.serve import delivering
from spotlessnet.serve.access import Limit
from spotlessnet.serve.addresses import Allowed
from spotlessnet.serve.app import make_app
from spotlessnet.serve.desk import Desk
from tests.serve.moody import Moody


def serve(folder: Path, database: str | None, port: int, worker: str) -> None:
    # Whoever is killed on the way to a webhook keeps it so long for itself.
    delivering.TAKEN = timedelta(seconds=2)
    desk = Desk.at(folder, database=database, engine=Moody(), webhooks_to=Allowed.of(["127.0.0.0/8"]))
    app = make_app(desk, worker=worker)
    app.state.calls = Limit(1e6, 1e6)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    for line in sys.stdin:
        port, worker = line.split()
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(Path(sys.argv[1]), sys.argv[2] or None, int(port), worker)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
