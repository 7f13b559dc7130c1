"""A pytest plugin (`-p tests.mutants.hurry`): any failure will do, so none is made small, and every run draws alike."""

from hypothesis import Phase, settings

settings.register_profile("hurry", phases=(Phase.explicit, Phase.generate), derandomize=True)
settings.load_profile("hurry")
