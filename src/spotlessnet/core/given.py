"""What was handed in as rows: taken as it is, or refused in words before any work."""

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError


def as_data(given: Data) -> Data:
    """The rows as they are; refused where something else was handed in, with what makes rows of it."""
    if not isinstance(given, Data):
        raise SettingError(
            f"Rows must be a `Data`, but got {type(given).__name__}. Give `sn.Data.of(...)` of a pair of arrays, a "
            "Dataset or a DataLoader."
        )
    return given
