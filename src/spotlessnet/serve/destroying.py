"""What still knows the forgotten examples once a new version is published, and how it goes; receipts stay."""

import json
import shutil
from pathlib import Path

from spotlessnet.core.errors import DataError
from spotlessnet.core.files import overwrite, write_whole
from spotlessnet.requests.folder import NOT_REACHED, PRETRAINED, PRIVATE, RECEIPT, SCRUBBED
from spotlessnet.requests.forgettable import NETWORK, STATE
from spotlessnet.requests.lineage import SUFFIX, Lineage
from spotlessnet.requests.purging import purge_request
from spotlessnet.requests.recorded import RECORDS
from spotlessnet.requests.serving import FOLD_MODELS, STATISTICS
from spotlessnet.serve.trail import now
from spotlessnet.store.training_record import INIT, RECORD, ROWS, WEIGHTS

KNOWING = (SCRUBBED, WEIGHTS, NETWORK, STATE, STATISTICS, FOLD_MODELS, ROWS, INIT, RECORD, RECORD + SUFFIX)
"""Files of a version that was replaced: its weights, its digests of rows, and what was kept for its requests."""

DESTROYED = "destroyed.json"


def destroy_version(folder: Path) -> list[str]:
    """Overwrite and unlink the files of a version that was replaced; whoever is killed here can begin again."""
    files = [folder / name for name in KNOWING]
    files += sorted(folder.glob(f"{PRETRAINED}/*")) if not (folder / PRETRAINED).is_symlink() else []
    found = [one for one in files if one.is_file() and not one.is_symlink()]
    for one in found:
        overwrite(one)
    names = [str(one.relative_to(folder)) for one in found]
    if names:
        told = {"destroyed": now().isoformat(timespec="seconds"), "files": names, "reach": NOT_REACHED}
        write_whole(folder / DESTROYED, json.dumps(told, indent=2).encode() + b"\n", replace=True)
    return names + destroy_private(folder)


def destroy_private(folder: Path) -> list[str]:
    """Destroy what opens the commitments of a receipt, and the audit's report with it; nothing where there is none."""
    if not (folder / PRIVATE).is_dir():
        return []
    return list(purge_request(folder, at_once=True).files)


def destroy_folder(folder: Path) -> None:
    """Overwrite every file of a folder, and remove it; nothing where there is none."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for one in folder.rglob("*"):
        if one.is_file() and not one.is_symlink():
            overwrite(one)
    shutil.rmtree(folder)


def withdraw_result(base: Path, out: Path) -> None:
    """Destroy a whole result that was never published, and free the version that it was made from.

    Anybody who kept a copy of it has a network that forgot; the base has not served a request then.
    """
    if out.is_symlink() or base.resolve() == out.resolve():
        raise DataError(f"{out} must be the folder of a result, but is not. Nothing was destroyed.")
    if out.is_dir():
        # The receipt first: without it the base counts as unused, whenever this is interrupted.
        files = sorted((one for one in out.rglob("*") if one.is_file()), key=lambda one: one.name != RECEIPT)
        for one in files:
            overwrite(one)
        shutil.rmtree(out)
    if (base / RECORD).is_file():
        Lineage(base / RECORD, RECORDS).note.unlink(missing_ok=True)
