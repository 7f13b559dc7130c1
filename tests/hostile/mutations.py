"""Ways to damage a file: its bytes, the values in its JSON, the words of its text, or the inside of an archive.

A damaged byte in an archive is caught by its checksum, and one in JSON mostly by its grammar. So both are also taken
apart, damaged inside, and put together again soundly: then what is claimed is wrong, and not how it is written.
"""

import copy
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

INTERESTING = (
    *(b"\0", b"\xff", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"..", b"/", b"[", b"{", b'"', b"\n", b"nan", b"-1", b"#"),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"1e999", b"0x" + b"f" * 5000, b"9" * 400, b"[" * 2000, b"\r", b"\xe2\x80\xa8"),
)

OPCODES = (
    *(b")", b"\x85", b"\x86", b"t", b"(", b"}", b"]", b"s", b"u", b"a", b"e", b"b", b"R", b"\x81", b"Q", b"0", b"2"),
    *(b"cos\nsystem\n", b"ctorch\nTensor\n", b"ctorch._utils\n_rebuild_sparse_tensor\n", b"\x8f", b"\x94", b"h\0"),
    *(b"2\x86" * 31, b"\x96\xff\xff\xff\xff\0\0\0\0", b"N0" * 300_000),
    *(b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 8, b"X\xff\xff\xff\xff", b"I99999999999999999999\n", b"\x85" * 99),
)
"""Letters of pickles that make, change or call something, and numbers that are too large."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        "../../etc/passwd",
        "/dev/zero",
        "a\nb",
        "\x1b[31m",
        "\ud800",
        "\0",
        "ü" * 50,
        "9" * 400,
        "F8_E4M3",
        "I64",
    ),
    *([], {}, [[]], [1, 2], [-1, -1], {"": None}, ["a", ["b"]], {"sha256": "0"}, [None] * 100),
)


def damaged(content: bytes, draw: random.Random, words: tuple[bytes, ...] = INTERESTING) -> bytes:
    """The same bytes after one to four accidents."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(found) + 1) if draw.random() < 0.5 else draw.randrange(min(len(found), 200) + 1)
        length = draw.choice((1, 2, 4, 8, 64))
        kind = draw.choice((0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 5))
        if kind == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            found[at : at + length] = draw.randbytes(length)
        elif kind == 2:
            found[at:at] = draw.choice(words)
        elif kind == 3:
            del found[at : at + length]
        elif kind == 4:
            del found[at:]
        else:
            found[at:at] = found[at : at + length] * draw.randint(1, 3)
        if not found:
            break
    return bytes(found)


def pickled(content: bytes, draw: random.Random) -> bytes:
    """A pickle with letters of other pickles put into it."""
    return damaged(content, draw, OPCODES)


def revalued(content: bytes, draw: random.Random) -> bytes:
    """JSON that is sound and says something else in one to three places."""
    found = json.loads(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        found = _changed(found, draw)
    return json.dumps(found).encode()


def _changed(value: Any, draw: random.Random) -> Any:
    """One value somewhere in a tree replaced, removed or doubled."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.1:
        return copy.deepcopy(draw.choice(VALUES))  # some are changed again
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, action = draw.choice(keys), draw.random()
    if action < 0.1:
        del value[key]
    elif action < 0.2 and isinstance(value, dict):
        value[str(draw.choice(VALUES[:20]))[:80]] = value.pop(key)
    elif action < 0.3 and isinstance(value, list):
        value.append(value[key])
    else:
        value[key] = _changed(value[key], draw)
    return value


def reheaded(content: bytes, draw: random.Random) -> bytes:
    """A safetensors file whose header is sound JSON and says something else."""
    (length,) = struct.unpack("<Q", content[:8])
    header = revalued(content[8 : 8 + length], draw)
    if draw.random() < 0.005:  # rarely, since it takes long
        header = _of_many(draw.choice((1_000, 30_000, 33_000, 100_000, 250_000)))
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def _of_many(count: int) -> bytes:
    """A header of so many tensors without a number."""
    return json.dumps({f"{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(count)}).encode()


def reworded(content: bytes, draw: random.Random) -> bytes:
    """Text with some of its values after `=`, `,` or `:` replaced by others of any kind."""
    lines = content.split(b"\n")
    for _ in range(draw.choice((1, 1, 2))):
        at = draw.randrange(len(lines))
        head, mark, _ = lines[at].partition(draw.choice((b"=", b",", b":")))
        lines[at] = head + mark + b" " + _written(draw.choice(VALUES))
    return b"\n".join(lines)


def _written(value: Any) -> bytes:
    # TOML spells some values otherwise than JSON does; both are worth a try.
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return {b"NaN": b"nan", b"Infinity": b"inf", b"null": b"1979-05-27"}.get(text, text)


def repacked(inside: Mutation) -> Mutation:
    """An archive with one member damaged and every checksum right."""

    def mutation(content: bytes, draw: random.Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        # The part that describes the rest, where there is one, is worth most.
        name = next((n for n in members if n.endswith("data.pkl") and draw.random() < 0.7), draw.choice(list(members)))
        members[name] = inside(members[name], draw)
        stream = io.BytesIO()
        packing = zipfile.ZIP_DEFLATED if draw.random() < 0.1 else zipfile.ZIP_STORED
        with zipfile.ZipFile(stream, "w", packing) as archive:
            for name, inner in members.items():
                archive.writestr(name, inner)
        return stream.getvalue()

    return mutation
