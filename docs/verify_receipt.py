"""Check a signed receipt without spotlessnet: python verify_receipt.py receipt.bundle.json ledger.pub

Needs Python and `cryptography` alone. It prints the receipt and ends with 0 if all of this holds, else with 1:
1. every key that took over from another was handed over to, by a statement that both signed;
2. the tree head (name, size, root hash and time of the ledger) is signed by a key that was in force;
3. the receipt is in the ledger under that head (RFC 6962), at the place that the bundle says;
4. the receipt is signed (DSSE, ed25519) by a key that was in force at that place.
The public key must come from somebody you believe, not with the bundle.
"""

import base64
import hashlib
import json
import re
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

OURS = "application/vnd.spotlessnet."
RECEIPT, HEAD, ROTATION = "application/vnd.in-toto+json", f"{OURS}tree-head+json", f"{OURS}key-rotation+json"


def must(holds, why):
    if not holds:
        raise ValueError(why)


def once(pairs):
    must(len({name for name, _ in pairs}) == len(pairs), "a name stands twice in the JSON")
    return dict(pairs)


def loads(text):
    return json.loads(text, object_pairs_hook=once)


def unbase64(text):
    content = base64.b64decode(text, validate=True)
    must(base64.b64encode(content).decode() == text, "base64 is not spelled as it was written")
    return content


def key_in(pem):
    """A public key and its id, the SHA-256 of its DER form."""
    key = load_pem_public_key(pem)
    must(isinstance(key, Ed25519PublicKey), "the public key is not an ed25519 key")
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest(), key


def fields(value, names):
    must(isinstance(value, dict) and value.keys() == names, f"an object must have the fields {sorted(names)} alone")
    return value


def opened(envelope, kind):
    """Payload, the message that is signed, and the signatures by key id (DSSE)."""
    fields(envelope, {"payload", "payloadType", "signatures"})
    must(envelope["payloadType"] == kind, f"an envelope of {kind} was expected")
    payload, name = unbase64(envelope["payload"]), kind.encode()
    signatures = [fields(one, {"keyid", "sig"}) for one in envelope["signatures"]]
    must(len({one["keyid"] for one in signatures}) == len(signatures), "a key signed twice")
    message = b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)
    return payload, message, {one["keyid"]: unbase64(one["sig"]) for one in signatures}


def signed_payload(envelope, kind, keys, position):
    """The payload, if a trusted key that was in force at this position of the log signed it."""
    payload, message, signatures = opened(envelope, kind)
    in_force = []
    for name in signatures.keys() & keys.keys():
        key, first, end = keys[name]
        key.verify(signatures[name], message)
        in_force.append(first <= position and (end is None or position < end))
    must(any(in_force), "no trusted key that was in force signed it")
    return payload


def with_rotations(trusted, rotations):
    """Keys by id with the positions in the log from and up to which each is in force, and the log's name."""
    chain, turns, logs = [], [], set()
    for envelope in rotations:
        payload, message, signatures = opened(envelope, ROTATION)
        turn = fields(loads(payload), {"log", "index", "time", "old", "new"})
        old, new = (key_in(turn[name].encode()) for name in ("old", "new"))
        must(signatures.keys() == {old[0], new[0]}, "a rotation is not signed by both keys")
        for name, key in (old, new):
            key.verify(signatures[name], message)
        follows = not chain or (chain[-1][0] == old[0] and turns[-1] < turn["index"])
        must(follows and new[0] not in {name for name, _ in chain}, "keys did not hand over one to the next")
        chain = [*(chain or [old]), new]
        turns.append(turn["index"])
        logs.add(turn["log"])
    found = {name: (key, 0, None) for name, key in trusted.items()}
    if any(name in trusted for name, _ in chain):
        spans = zip(chain, [0, *turns], [*turns, None], strict=True)
        found |= {name: (key, first, end) for (name, key), first, end in spans}
    return found, logs


def root_of(leaf, index, size, path):
    """The root to which an inclusion proof leads (RFC 9162, 2.1.3.2)."""
    must(type(index) is int and type(size) is int and 0 <= index < size, "the ledger has no such entry")
    place, last, found = index, size - 1, leaf
    for text in path:
        must(re.fullmatch("[0-9a-f]{64}", text) and last, "the proof is longer than the tree is high")
        sibling = bytes.fromhex(text)
        if place & 1 or place == last:
            found = hashlib.sha256(b"\x01" + sibling + found).digest()
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            found = hashlib.sha256(b"\x01" + found + sibling).digest()
        place, last = place >> 1, last >> 1
    must(last == 0, "the proof is shorter than the tree is high")
    return found


def check(bundle, pem):
    """The receipt in a bundle, its index and the ledger's tree head; raises where it proves nothing."""
    fields(bundle, {"mediaType", "receipt", "index", "inclusion", "head", "rotations"})
    must(bundle["mediaType"] == f"{OURS}bundle+json;version=1", "this is no bundle")
    blocks = re.findall(b"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", pem, re.S)
    must(blocks and type(bundle["inclusion"]) is type(bundle["rotations"]) is list, "no public key, or no lists")
    keys, logs = with_rotations(dict(map(key_in, blocks)), bundle["rotations"])
    head = fields(loads(opened(bundle["head"], HEAD)[0]), {"log", "size", "root", "time"})
    signed_payload(bundle["head"], HEAD, keys, max(head["size"] - 1, 0))
    must(logs <= {head["log"]}, "a rotation is of another log")
    entry = json.dumps(bundle["receipt"], sort_keys=True, separators=(",", ":"), allow_nan=False)
    leaf = hashlib.sha256(b"\x00" + entry.encode()).digest()
    root = root_of(leaf, bundle["index"], head["size"], bundle["inclusion"])
    must(root.hex() == head["root"], "the receipt is not in the ledger")
    return loads(signed_payload(bundle["receipt"], RECEIPT, keys, bundle["index"])), bundle["index"], head


def main(bundle, public_key):
    """Print what is proven, or why nothing is."""
    try:
        with open(bundle, "rb") as one, open(public_key, "rb") as other:
            receipt, index, head = check(loads(one.read()), other.read())
    except Exception as e:  # whatever is wrong with it, it proves nothing
        print(f"refused: {type(e).__name__} {e}", file=sys.stderr)
        return 1
    print(json.dumps(receipt, indent=2))
    print(f"signed, and entry {index} of {head['size']} in ledger {head['log']} at {head['time']}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) if len(sys.argv) == 3 else __doc__)
