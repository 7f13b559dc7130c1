"""`spotless completion`: a script that lets a shell complete commands, flags and names of methods.

The script holds all words itself: a shell that asked Python at every press of the key would wait for torch each time.
"""

from typing import Annotated, Any

import typer

from spotlessnet.cli.common import Console, Debug, Quiet
from spotlessnet.core.errors import check_choice

Shell = Annotated[str, typer.Argument(help="bash, zsh or fish.")]

BASH = """\
_spotless() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""
    if [ "$before" = "--method" ]; then
        words="@METHODS@"
    elif [ "$COMP_CWORD" -eq 1 ]; then
        words="@COMMANDS@"
    else
        case "${COMP_WORDS[1]}" in
@CASES@
        esac
    fi
    case "$before:$word" in
        --method:*|*:-*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
        *) if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "$words" -- "$word"))
           else COMPREPLY=($(compgen -f -- "$word")); fi ;;
    esac
}
complete -o filenames -F _spotless spotless
"""


def completion(shell: Shell, quiet: Quiet = False, debug: Debug = False) -> int:
    """Print a script that completes commands, flags and methods in your shell.

    [bold]spotless completion bash > ~/.local/share/bash-completion/completions/spotless[/bold]

    For zsh, keep the script in a file and `source` it in ~/.zshrc; for fish, write it to
    ~/.config/fish/completions/spotless.fish. Write it anew after an update.
    """
    check_choice("shell", shell, ("bash", "zsh", "fish"))
    Console(quiet=quiet).give({}, [script(shell, words(), methods())])
    return 0


def words() -> dict[str, list[str]]:
    """The long flags of every command."""
    from spotlessnet.cli.entry import application

    found: Any = typer.main.get_command(application())
    return {
        name: [*sorted(flag for one in command.params for flag in one.opts if flag.startswith("--")), "--help"]
        for name, command in found.commands.items()
    }


def methods() -> list[str]:
    """What `--method` takes."""
    from spotlessnet.cli.listing import methods as listed

    return sorted(listed())


def script(shell: str, flags: dict[str, list[str]], names: list[str]) -> str:
    """The words as a script of this shell; zsh reads that of bash."""
    if shell == "fish":
        lines = [f"complete -c spotless -n __fish_use_subcommand -f -a {name}" for name in flags]
        for name, own in flags.items():
            seen = f"-n '__fish_seen_subcommand_from {name}'"
            lines += [f"complete -c spotless {seen} -l {flag[2:]}" for flag in own if flag != "--method"]
            if "--method" in own:
                lines.append(f"complete -c spotless {seen} -l method -x -a '{' '.join(names)}'")
        return "\n".join(lines)
    cases = "\n".join(f'            {name}) words="{" ".join(own)}" ;;' for name, own in flags.items())
    text = BASH.replace("@METHODS@", " ".join(names)).replace("@COMMANDS@", " ".join(flags)).replace("@CASES@", cases)
    before = "autoload -Uz bashcompinit compinit && compinit && bashcompinit\n" if shell == "zsh" else ""
    return before + text.rstrip("\n")
