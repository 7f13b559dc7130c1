"""The log's hash tree, against the RFC's own definition written out and the vectors of certificate transparency."""

import hashlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlessnet.core.errors import IntegrityError, SettingError
from spotlessnet.proof import merkle
from spotlessnet.proof.merkle import Frontier, check_consistency, check_inclusion, in_memory, leaf_hash

ENTRIES = [bytes.fromhex(one) for one in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")] + [
    bytes.fromhex("606162636465666768696a6b6c6d6e6f")
]
"""The inputs of certificate transparency's own tests, with their roots for the first one, two, … entries."""

ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]

INCLUSION = {
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
}

CONSISTENCY = {
    (1, 1): [],
    (1, 8): INCLUSION[0, 8],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


# The RFC's definitions, word for word and as slow as they are: MTH, PATH and PROOF with SUBPROOF (2.1, 2.1.1, 2.1.2).


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def split(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def mth(d: list[bytes]) -> bytes:
    if not d:
        return sha(b"")
    if len(d) == 1:
        return sha(b"\x00" + d[0])
    k = split(len(d))
    return sha(b"\x01" + mth(d[:k]) + mth(d[k:]))


def path(m: int, d: list[bytes]) -> list[bytes]:
    if len(d) == 1:
        return []
    k = split(len(d))
    return [*path(m, d[:k]), mth(d[k:])] if m < k else [*path(m - k, d[k:]), mth(d[:k])]


def subproof(m: int, d: list[bytes], b: bool) -> list[bytes]:
    if m == len(d):
        return [] if b else [mth(d)]
    k = split(len(d))
    return [*subproof(m, d[:k], b), mth(d[k:])] if m <= k else [*subproof(m - k, d[k:], False), mth(d[:k])]


def log(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


def reader(entries: list[bytes]) -> merkle.Reader:
    return in_memory(leaf_hash(entry) for entry in entries)


def hexed(hashes: list[bytes]) -> list[str]:
    return [one.hex() for one in hashes]


def test_roots_and_proofs_are_those_of_certificate_transparency():
    read = reader(ENTRIES)
    assert hexed([merkle.root(n, read) for n in range(9)]) == ROOTS
    for (index, size), told in INCLUSION.items():
        assert hexed(merkle.inclusion(index, size, read)) == told
        check_inclusion(
            leaf_hash(ENTRIES[index]), index, size, list(map(bytes.fromhex, told)), bytes.fromhex(ROOTS[size])
        )
    for (old, new), told in CONSISTENCY.items():
        assert hexed(merkle.consistency(old, new, read)) == told
        check_consistency(
            old, new, bytes.fromhex(ROOTS[old]), bytes.fromhex(ROOTS[new]), list(map(bytes.fromhex, told))
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=70), st.data())
def test_proofs_are_those_of_the_definition(entries, data):
    read = reader(entries)
    size = data.draw(st.integers(1, len(entries)))
    index = data.draw(st.integers(0, size - 1))
    old = data.draw(st.integers(1, size))
    assert merkle.root(size, read) == mth(entries[:size])
    assert merkle.inclusion(index, size, read) == path(index, entries[:size])
    assert merkle.consistency(old, size, read) == subproof(old, entries[:size], True)
    check_inclusion(leaf_hash(entries[index]), index, size, path(index, entries[:size]), mth(entries[:size]))
    check_consistency(old, size, mth(entries[:old]), mth(entries[:size]), subproof(old, entries[:size], True))


def test_every_proof_of_small_logs_holds_and_no_other_does():
    entries = log(17)
    roots = [mth(entries[:n]) for n in range(18)]
    for size in range(1, 18):
        for index in range(size):
            proof = path(index, entries[:size])
            for claimed in range(size):
                held = held_by(check_inclusion, leaf_hash(entries[index]), claimed, size, proof, roots[size])
                assert held == (claimed == index)
        for old in range(size + 1):
            proof = subproof(old, entries[:size], True) if old else []
            assert held_by(check_consistency, old, size, roots[old], roots[size], proof)
            for claimed in range(18):
                if claimed != old:
                    assert not held_by(check_consistency, claimed, size, roots[old], roots[size], proof)


def held_by(check, *given) -> bool:
    try:
        check(*given)
    except IntegrityError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.data())
def test_a_changed_proof_does_not_hold(size, data):
    entries = log(size)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size - 1))
    proofs = (
        (check_inclusion, (leaf_hash(entries[index]), index, size), path(index, entries), (mth(entries),)),
        (check_consistency, (old, size, mth(entries[:old]), mth(entries)), subproof(old, entries, True), ()),
    )
    for check, before, proof, after in proofs:
        place = data.draw(st.integers(0, len(proof) - 1))
        flipped = bytes([proof[place][0] ^ 1]) + proof[place][1:]
        changes = (
            [*proof[:place], flipped, *proof[place + 1 :]],
            [*proof[:place], *proof[place + 1 :]],
            [*proof, proof[-1]],
            [*proof[:place], sha(b"more"), *proof[place:]],
        )
        for changed in changes:
            assert not held_by(check, *before, changed, *after)


def test_an_entry_cannot_pass_for_a_node():
    left, right = leaf_hash(b"a"), leaf_hash(b"b")
    assert leaf_hash(left + right) != merkle.node_hash(left, right) != leaf_hash(b"\x01" + left + right)


def test_what_no_log_has_is_refused():
    read = reader(log(3))
    with pytest.raises(SettingError, match="from 0 to 2, but got 3"):
        merkle.inclusion(3, 3, read)
    with pytest.raises(SettingError, match="from a smaller log to a larger, but got 3 and 2"):
        merkle.consistency(3, 2, read)
    with pytest.raises(IntegrityError, match="entries were taken away"):
        check_consistency(3, 2, b"", b"", [])


def test_an_entry_completes_few_subtrees_and_a_proof_reads_few():
    frontier = Frontier()
    most = 0
    for i in range(3000):
        done = frontier.append(leaf_hash(b"%d" % i))
        most = max(most, len(done))
        assert len(frontier.hashes) == (i + 1).bit_count()
    assert most <= 12
    for size in (1, 2, 1000, 999_999, 10**6, 2**40 + 1):
        asked: list[int] = []

        def read(places, asked=asked):
            asked.append(len(places))
            return dict.fromkeys(places, b"\x00" * 32)

        merkle.inclusion(size // 3, size, read)
        merkle.consistency(size // 3, size, read)
        assert max(asked) <= 2 * size.bit_length()


@pytest.mark.slow
def test_a_million_entries():
    began = time.process_time()
    leaves = [leaf_hash(b"%d" % i) for i in range(10**6)]
    read = in_memory(leaves)
    root = merkle.root(10**6, read)
    took = time.process_time() - began
    check_inclusion(leaves[777_777], 777_777, 10**6, merkle.inclusion(777_777, 10**6, read), root)
    check_consistency(654_321, 10**6, merkle.root(654_321, read), root, merkle.consistency(654_321, 10**6, read))
    assert took < 60
