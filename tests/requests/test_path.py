"""How many files a request visits, counted by the script that `docs/architecture.md` draws its picture from."""

from functools import cache

from benchmarks.request_path import Trace, mermaid, way_of_scrub, way_of_unlearn

from spotlessnet.cli.console import printable

MOST = 25
"""Files that a reader of one request without an audit has to open, up to the method's door."""

ways = {"sn.unlearn": cache(way_of_unlearn), "spotless scrub": cache(way_of_scrub)}


def test_a_request_visits_at_most_25_files():
    found = ways["sn.unlearn"]()
    assert len(found.request) <= MOST, found.request
    assert found.request[0] == "requests/unlearning.py"
    assert "methods/short_retrain.py" in found.request
    assert not any(file.startswith(("cli/", "auditing/", "report/")) for file in found.request)


def test_the_command_is_a_thin_layer():
    """Beside the request's own files it visits its flags, its console, and the folder that it writes."""
    more = set(ways["spotless scrub"]().request) - set(ways["sn.unlearn"]().request)
    written = {"requests/folder.py", "core/files.py"}
    assert {file for file in more if not file.startswith("cli/")} == written
    assert len(more) <= 6, more


def test_what_the_method_does_is_counted_apart():
    found = ways["sn.unlearn"]()
    assert "training/fit.py" in found.method
    assert not set(found.method) & set(found.request)


def test_a_planted_call_is_seen():
    """The count would grow if a request went through one more file."""
    assert Trace.of(lambda: None).request == []
    assert Trace.of(lambda: printable("a")).request == ["cli/console.py"]


def test_the_picture_names_each_file_once():
    picture = mermaid(Trace(["a.py", "b.py"]))
    assert picture == 'flowchart TD\n  f1["1. a.py"]\n  f2["2. b.py"]\n  f1 --> f2'
