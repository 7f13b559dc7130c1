"""Where a webhook may lead: a tenant must not make the desk call services that only the desk's own machine reaches."""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from spotlessnet.core.errors import ResourceError, SettingError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST = 2000
UNICAST = ipaddress.ip_network("2000::/3")
"""Public IPv6 addresses. Python calls others global too: those that a gateway turns into IPv4 ones, whichever these
are, and those of a site (fec0::/10)."""


@dataclass(frozen=True)
class Allowed:
    """Networks that may be called beside public addresses, as whoever runs the desk said."""

    networks: tuple[Network, ...] = ()

    @staticmethod
    def of(given: Sequence[str]) -> "Allowed":
        """From what the command was told."""
        try:
            return Allowed(tuple(ipaddress.ip_network(one, strict=False) for one in given))
        except ValueError as e:
            raise SettingError(
                f"--webhooks-to must be an address or a network, such as 10.0.0.0/8, but: {e}. Give one each time."
            ) from e

    def holds(self, address: Address) -> bool:
        """Whether an address may be called."""
        plain = _plain(address)
        if any(plain in one for one in self.networks if one.version == plain.version):
            return True
        return plain.is_global and not plain.is_multicast and (plain.version == 4 or plain in UNICAST)


PUBLIC = Allowed()
"""No network beside public addresses."""


def _plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one may stand for."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or address.sixtofour or address


@dataclass(frozen=True)
class Place:
    """A checked URL, taken apart."""

    secure: bool
    host: str
    port: int
    path: str


def place_of(url: str, allowed: Allowed) -> Place:
    """A URL that a webhook may have; refused where it is none, or names an address that may not be called."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise SettingError("A webhook's URL cannot be read. Give one such as https://example.org/hook.") from e
    is_plain = len(url) <= LONGEST and url.isascii() and url.isprintable() and " " not in url
    if not is_plain or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SettingError(
            f"A webhook's URL must begin with https:// or http://, name a host and have {LONGEST} plain characters at "
            "most. Give one such as https://example.org/hook."
        )
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise SettingError("A webhook's URL must have neither a password nor a fragment: its signature is its proof.")
    address = _literal(parts.hostname)
    if address is not None and not allowed.holds(address):
        raise SettingError(_refusal())
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(secure, parts.hostname, port or (443 if secure else 80), path)


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _refusal() -> str:
    return (
        "A webhook must lead to a public address: not to this machine, its network or its provider's metadata. Whoever "
        "runs the desk can allow a network with --webhooks-to."
    )


def resolved(place: Place, allowed: Allowed) -> str:
    """One address of a host, at the time of the call; refused where any of its addresses may not be called.

    The call goes to this very address: looked up again, the name could lead elsewhere.
    """
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:
        raise ResourceError("the host has no address") from e
    addresses = [str(one[4][0]).partition("%")[0] for one in found]
    if not addresses or not all(allowed.holds(ipaddress.ip_address(one)) for one in addresses):
        raise SettingError(_refusal())
    return addresses[0]
