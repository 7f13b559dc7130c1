"""Training: the one loop that fits a network to rows, and the same for many networks at once."""

from spotlessnet.training.fit import fit, train
from spotlessnet.training.fit_many import fit_many
from spotlessnet.training.many import Executor, train_many
from spotlessnet.training.optimiser import lr_at

__all__ = ["Executor", "fit", "fit_many", "lr_at", "train", "train_many"]
