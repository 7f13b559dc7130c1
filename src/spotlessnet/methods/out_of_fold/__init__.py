"""Out-of-fold distillation: the method, and its parts, one step a file."""

from spotlessnet.methods.out_of_fold.method import OutOfFoldDistillation

__all__ = ["OutOfFoldDistillation"]
