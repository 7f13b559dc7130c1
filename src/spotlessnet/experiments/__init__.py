"""The papers' tables and figures, one file each."""
