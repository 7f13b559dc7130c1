"""Who may do what: tokens with scopes, kept as digests; sessions and forms of the pages; limits on how often."""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import SettingError
from spotlessnet.serve.database import TENANTS, TOKENS, rows_of
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.row_digests import OF_TENANT, OF_TOKEN, digest_of, spelled
from spotlessnet.serve.sealing import Keys
from spotlessnet.serve.trail import in_utc, note, now

SCOPES = ("submit", "operate", "approve", "read")
PREFIX = "spotless_"
"""So that scanners for secrets recognise a token that was published by mistake."""

SESSION = timedelta(hours=8)

# Statements of every call, put together once: that takes longer than the database takes to answer them.
_POLICY = sa.select(TENANTS.c.policy).where(TENANTS.c.id == sa.bindparam("tenant"))
_VALID = sa.select(TOKENS).where(TOKENS.c.revoked.is_(None))
_BY_DIGEST = _VALID.where(TOKENS.c.digest == sa.bindparam("told"))
_BY_ID = _VALID.where(TOKENS.c.id == sa.bindparam("told"))


@dataclass(frozen=True)
class Caller:
    """Who is asking: a token of one tenant, and what it may do."""

    token: str
    tenant: str
    name: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """Whether the token has a scope."""
        return scope in self.scopes


def add_tenant(connection: sa.Connection, name: str, policy: Policy | None = None) -> str:
    """A new tenant: sees nothing of others, and others see nothing of it."""
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise SettingError("A tenant's name must have 1 to 80 printable characters.")
    if connection.execute(sa.select(TENANTS.c.id).where(TENANTS.c.name == name)).first() is not None:
        raise SettingError(f"There is a tenant {name!r} already. Choose another name.")
    tenant = str(uuid.uuid4())
    values = {"id": tenant, "name": name, "policy": (policy or Policy()).record(), "created": now()}
    connection.execute(TENANTS.insert().values(**values))
    row = digest_of(values, OF_TENANT)
    note(connection, tenant, "tenant added", policy=values["policy"], row=row)
    return tenant


def policy_of(connection: sa.Connection, tenant: str) -> Policy:
    """The rules of a tenant."""
    return Policy.of(connection.execute(_POLICY, {"tenant": tenant}).scalar_one())


def set_policy(connection: sa.Connection, tenant: str, policy: Policy, actor: str) -> None:
    """Change the rules of a tenant; open requests keep their dates."""
    connection.execute(TENANTS.update().where(TENANTS.c.id == tenant).values(policy=policy.record()))
    note(connection, tenant, "policy changed", actor=actor, **policy.record())


def add_token(
    connection: sa.Connection,
    tenant: str,
    name: str,
    scopes: tuple[str, ...] | list[str],
    *,
    actor: str = "command",
    expires: datetime | None = None,
) -> str:
    """A new token, told once: the database has its SHA-256 alone."""
    strange = [one for one in scopes if one not in SCOPES]
    if strange or not scopes:
        raise SettingError(f"A token's scopes must be some of {', '.join(SCOPES)}, but got {', '.join(scopes)[:80]!r}.")
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise SettingError("A token's name must have 1 to 80 printable characters.")
    expires = None if expires is None else in_utc(expires, "expires")
    told = PREFIX + secrets.token_urlsafe(32)
    values = {"id": str(uuid.uuid4()), "tenant": tenant, "name": name, "digest": _digest(told), "created": now()}
    values |= {"scopes": " ".join(sorted(set(scopes))), "expires": expires}
    connection.execute(TOKENS.insert().values(**values))
    row = digest_of(values, OF_TOKEN)
    note(connection, tenant, "token added", actor=actor, token=values["id"], scopes=values["scopes"], row=row)
    return told


def revoke_token(connection: sa.Connection, tenant: str, token: str, actor: str) -> None:
    """End a token at once; `LookupError` where the tenant has none such, nothing where it has ended."""
    own = sa.and_(TOKENS.c.tenant == tenant, TOKENS.c.id == token)
    if connection.execute(sa.select(TOKENS.c.id).where(own)).first() is None:
        raise LookupError(token)
    at = now()
    if connection.execute(TOKENS.update().where(own, TOKENS.c.revoked.is_(None)).values(revoked=at)).rowcount:
        note(connection, tenant, "token revoked", actor=actor, token=token, when=spelled(at))


def tokens_of(connection: sa.Connection, tenant: str) -> list[dict[str, Any]]:
    """The tokens of a tenant, without their digests."""
    shown = (TOKENS.c.id, TOKENS.c.name, TOKENS.c.scopes, TOKENS.c.created, TOKENS.c.expires, TOKENS.c.revoked)
    return rows_of(connection, sa.select(*shown).where(TOKENS.c.tenant == tenant).order_by(TOKENS.c.created))


def caller_of(connection: sa.Connection, told: str) -> Caller | None:
    """Who bears a token; `None` for one that is unknown, ended or revoked. Found by digest, so no prefix leaks."""
    return _caller(connection, _BY_DIGEST, _digest(told))


def _caller(connection: sa.Connection, query: sa.Select[Any], told: bytes | str) -> Caller | None:
    row = connection.execute(query, {"told": told}).mappings().one_or_none()
    if row is None or (row["expires"] is not None and row["expires"] < now()):
        return None
    return Caller(row["id"], row["tenant"], row["name"], frozenset(row["scopes"].split()))


def _digest(told: str) -> bytes:
    return hashlib.sha256(told.encode()).digest()


def session_cookie(keys: Keys, caller: Caller) -> str:
    """A signed note of who is at the desk; it ends after eight hours, or with its token."""
    content = json.dumps([caller.token, int((now() + SESSION).timestamp())]).encode()
    parts = (content, keys.sign("session", content))
    return ".".join(base64.urlsafe_b64encode(part).decode() for part in parts)


def caller_of_cookie(connection: sa.Connection, keys: Keys, cookie: str) -> Caller | None:
    """Who a cookie speaks of, if this desk signed it and it has not ended."""
    try:
        content, code = (base64.urlsafe_b64decode(part.encode()) for part in cookie.split("."))
        if not hmac.compare_digest(code, keys.sign("session", content)):
            return None
        token, ends = json.loads(content)
    except (ValueError, TypeError):
        return None
    return None if ends < time.time() else _caller(connection, _BY_ID, token)


def form_code(keys: Keys, cookie: str) -> str:
    """What every form of a session carries: another site cannot know it."""
    return keys.sign("form", cookie.encode()).hex()


def is_form_code(keys: Keys, cookie: str, given: str) -> bool:
    """Whether a form was one of ours."""
    return hmac.compare_digest(form_code(keys, cookie).encode(), given.encode())


@dataclass
class Limit:
    """A bucket for each caller: `rate` calls a second, `burst` at once; kept in this process."""

    rate: float
    burst: float
    most: int = 10_000
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, who: str, at: float | None = None) -> float:
        """Seconds until this caller may call; 0 takes one from the bucket."""
        at = time.monotonic() if at is None else at
        with self._lock:
            left, before = self._buckets.get(who, (self.burst, at))
            left = min(self.burst, left + (at - before) * self.rate)
            if left < 1:
                return (1 - left) / self.rate
            if len(self._buckets) >= self.most:
                self._buckets.clear()  # full buckets for all: better than memory without end
            self._buckets[who] = (left - 1, at)
            return 0.0
