"""The nouns: what every other part of the package speaks about."""
