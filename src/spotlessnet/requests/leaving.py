"""What becomes of an output folder whose run failed: cleared, or left for `--resume`, and then that is said."""

import shutil
from pathlib import Path

from spotlessnet.core.errors import WornError

RESUME, REPEAT = "give --resume to go on there", "the same command goes on there"

LEFT: list[tuple[Path, str]] = []
"""Folders in which runs that failed left something to go on with; whoever tells of the failure names them."""


def clear(out: Path, error: BaseException, *, made: bool, keep: bool, resumes: bool = True) -> None:
    """Remove what a run that failed has written, so that the same folder serves the next one.

    **Arguments:**

    - `made`: the run made the folder itself; otherwise that was there and empty.
    - `keep`: an earlier run began there, or trainings were kept that `private` leads to: `--resume` goes on with it.
    - `resumes`: whether the command has that flag; where it has not, the same command goes on.
    """
    if isinstance(error, WornError):  # its refusal was written for the records
        return
    if keep:
        LEFT.append((out, RESUME if resumes else REPEAT))
        error.add_note(f"{out} holds what was begun: {'`resume=True`' if resumes else 'the same call'} goes on there.")
        return
    for path in out.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if made:
        out.rmdir()


def told() -> str:
    """What to do with folders that failed runs left, once; nothing where there are none."""
    told = "; ".join(f"{path} holds what was begun: {how}" for path, how in dict.fromkeys(LEFT))
    LEFT.clear()
    return told
