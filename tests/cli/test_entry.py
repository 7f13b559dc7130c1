"""The first second of the command: its version, a sign of life, its names, and words for the shell to complete."""

import subprocess
import sys
import time

import pytest

import spotlessnet
from tests.cli.workshop import spotless

LOADED = "import sys; sys.argv = ['spotless', *{words!r}]\nfrom spotlessnet.cli import main\n"


def test_the_version_comes_without_torch():
    """The fault before: 2.7 seconds of the processor for one number."""
    code = LOADED.format(words=["--version"]) + "code = main()\nassert 'torch' not in sys.modules\nsys.exit(code)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{spotlessnet.__version__}\n", "")


def test_the_version_takes_a_third_of_a_second_of_the_processor():
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "spotlessnet", "--version"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 0.3


@pytest.mark.parametrize("module", ["spotlessnet", "spotlessnet.cli"])
def test_the_package_is_the_command(module):
    ended = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{spotlessnet.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [(), ("--help",), ("list",), ("scrub", "--help"), ("verify", "nothing"), ("demo", "--dry-run")],
    ids=str,
)
def test_something_is_said_within_a_second(arguments):
    began = time.monotonic()
    command = [sys.executable, "-m", "spotlessnet", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        took = time.monotonic() - began
        process.kill()  # torch is loaded now, and nobody here waits for it
    assert first == " ".join(["spotless", *arguments[:1]]) + ": loading torch\n"
    assert took < 1.0


WITHOUT_TORCH = """
import sys
class Without:
    def find_spec(self, name, *more):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Without())
from spotlessnet.cli import main
sys.exit(main(["list", "-q"]))
"""


def test_without_torch_one_line_says_what_is_missing():
    """The fault before: 70, a mistake of spotless."""
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr.startswith("error[environment]: a package is missing or broken (No module named 'torch')")
    assert ended.stderr.count("\n") == 1


def test_quiet_is_quiet_from_the_start():
    ended = subprocess.run([sys.executable, "-m", "spotlessnet", "list", "-q"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n_spotless\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_flags_methods_and_files(tmp_path):
    script = spotless("completion", "bash").out
    assert completed(script, "spotless", "pre") == ["precompute"]
    assert completed(script, "spotless", "scrub", "--id") == ["--id-column"]
    assert completed(script, "spotless", "verify", "--id") == ["--id-column"]
    assert completed(script, "spotless", "purge", "--id") == []
    assert completed(script, "spotless", "scrub", "--method", "short") == ["short-retrain"]
    (tmp_path / "list-of-ids.csv").touch()
    assert completed(script, "spotless", "scrub", "--forget", str(tmp_path / "li")) == [
        str(tmp_path / "list-of-ids.csv")
    ]


def test_other_shells_get_a_script_and_unknown_ones_are_refused():
    assert spotless("completion", "zsh").out.startswith("autoload -Uz bashcompinit")
    fish = spotless("completion", "fish").out.splitlines()
    assert "complete -c spotless -n '__fish_seen_subcommand_from scrub' -l id-column" in fish
    assert spotless("completion", "tcsh").code == 2


def test_help_asks_for_no_value_where_none_is_taken():
    """The fault before: `--dry-run <bool>`, and `--dry-run true` ended in an error."""
    lines = spotless("scrub", "--help").out.splitlines()
    for flag in ("--dry-run", "--audit", "--json", "--resume"):
        [line] = [line for line in lines if f" {flag} " in line and line.startswith("│")]
        assert "<" not in line, line
    assert any(" --seeds " in line and "<int>" in line for line in lines)
