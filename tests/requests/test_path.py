"""How many files a request visits, counted by the script that `docs/architecture.md` draws its picture from."""

from functools import cache

from benchmarks.request_path import mermaid, visited, way_of_scrub, way_of_unlearn

from spotlessnet.cli.common import printable

MOST = 25
"""Files that a reader of one request without an audit has to open, those of the method that it runs among them."""

ways = {"sn.unlearn": cache(way_of_unlearn), "spotless scrub": cache(way_of_scrub)}


def test_a_request_visits_at_most_25_files():
    files = ways["sn.unlearn"]()
    assert len(files) <= MOST, files
    assert files[0] == "requests/unlearning.py"
    assert "store/receipts.py" in files
    assert not any(file.startswith(("cli/", "auditing/", "report/")) for file in files)


def test_the_command_is_a_thin_layer():
    """Beside the request's own files: flags and console, the list and weights it reads, whom they serve, its folder."""
    more = set(ways["spotless scrub"]()) - set(ways["sn.unlearn"]())
    assert more == {
        "cli/entry.py",
        "cli/common.py",
        "cli/console.py",
        "cli/scrubbing.py",
        "core/id_lists.py",
        "core/files.py",
        "requests/folder.py",
        "requests/effects.py",
        "store/pickled.py",
    }


def test_what_the_method_does_is_counted():
    files = ways["sn.unlearn"]()
    assert {"methods/short_retrain.py", "training/fit.py", "training/batches.py"} <= set(files)
    assert files.index("methods/short_retrain.py") < files.index("training/fit.py")


def test_a_planted_call_is_seen():
    """The count would grow if a request went through one more file."""
    assert visited(lambda: None) == []
    assert visited(lambda: printable("a")) == ["cli/entry.py"]


def test_the_picture_names_each_file_once():
    picture = mermaid(["a.py", "b.py"])
    assert picture == 'flowchart TD\n  f1["1. a.py"]\n  f2["2. b.py"]\n  f1 --> f2'
