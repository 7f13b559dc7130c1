"""The trail, read once from its first event to its last: what it says of requests, jobs, models, tokens and tenants."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from spotlessnet.serve.database import EVENTS

PAGE = 1000


class Said(NamedTuple):
    """One event."""

    actor: str
    detail: dict[str, Any]


Last = dict[str, Said]
"""By what happened, the last such event."""


def streamed(connection: sa.Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """Rows as dictionaries, some at a time: a trail need not fit into memory."""
    return connection.execute(query.execution_options(yield_per=PAGE)).mappings()


@dataclass
class Told:
    """What the trail says.

    **Arguments:**

    - `requests`, `jobs`: the last event of each kind, by request and job.
    - `models`: versions that were published, by tenant and name: the event of registering first.
    - `tenants`, `tokens`, `webhooks`: their last events, by id.
    - `tries`: how often a job was tried again.
    """

    requests: dict[str, Last] = field(default_factory=lambda: defaultdict(dict))
    jobs: dict[str, Last] = field(default_factory=lambda: defaultdict(dict))
    models: dict[tuple[str, str], list[Said]] = field(default_factory=lambda: defaultdict(list))
    tenants: dict[str, Last] = field(default_factory=lambda: defaultdict(dict))
    tokens: dict[str, Last] = field(default_factory=lambda: defaultdict(dict))
    webhooks: dict[str, Last] = field(default_factory=lambda: defaultdict(dict))
    tries: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def by(connection: sa.Connection) -> "Told":
        """Read the whole trail."""
        found = Told()
        for event in streamed(connection, sa.select(EVENTS).order_by(EVENTS.c.number)):
            found.take(event)
        return found

    def take(self, event: Any) -> None:
        """One more event."""
        what = event["what"]
        said = Said(event["actor"], event["detail"])
        if event["request"] is not None:
            last = self.requests[event["request"]]
            # Of these two the later one counts.
            last.pop({"held": "resumed", "resumed": "held"}.get(what, ""), None)
            last[what] = said
        if event["job"] is not None:
            self.jobs[event["job"]][what] = said
            self.tries[event["job"]] += what in ("tried again", "replay asked")
        if what in ("model registered", "published"):
            self.models[event["tenant"], said.detail["model"]].append(said)
        if what in ("tenant added", "policy changed"):
            self.tenants[event["tenant"]][what] = said
        if what in ("token added", "token revoked"):
            self.tokens[said.detail["token"]][what] = said
        if what in ("webhook added", "webhook removed"):
            self.webhooks[said.detail["webhook"]][what] = said
