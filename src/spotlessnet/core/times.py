"""How finely what is handed out tells when something was."""

from datetime import datetime


def full_hour(time: datetime) -> datetime:
    """The hour in which a time lies: as finely as a receipt tells when something was."""
    return time.replace(minute=0, second=0, microsecond=0)
