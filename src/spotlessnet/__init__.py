"""Make a trained network forget, and prove what is left."""

__version__ = "0.1.0"
