"""Proof: receipts signed (DSSE, ed25519) and appended to a Merkle log that shows any edit, removal or reordering.

Needs the extra `serve`; the library does not import it on its own.
"""
