"""Run a notebook in a kernel of its own, as Jupyter does, and show what it printed last."""

import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
printed = [out.text for cell in notebook.cells for out in cell.get("outputs", []) if out.get("name") == "stdout"]
print(printed[-1], end="")
