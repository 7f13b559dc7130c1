"""Training: the one loop that fits a network to rows, and the same for many networks at once."""

from spotlessnet.training.fit import fit
from spotlessnet.training.fit_many import fit_many
from spotlessnet.training.schedule import lr_at
from spotlessnet.training.train import train, train_many

__all__ = ["fit", "fit_many", "lr_at", "train", "train_many"]
