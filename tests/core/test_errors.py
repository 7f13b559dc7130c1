"""The error tree: every class is also a builtin, has an exit code, and every check tells what to do."""

import pytest
import torch

from spotlessnet.core import errors
from spotlessnet.core.errors import check_choice, check_finite, check_not_negative, check_positive


@pytest.mark.parametrize(
    ("name", "builtin", "code"),
    [
        ("SettingError", ValueError, 2),
        ("NeedError", ValueError, 2),
        ("DataError", ValueError, 3),
        ("MismatchError", ValueError, 3),
        ("ResourceError", OSError, 4),
        ("NumericsError", ArithmeticError, 5),
        ("SolveError", ArithmeticError, 5),
        ("IntegrityError", ValueError, 7),
    ],
)
def test_every_error_is_a_builtin_and_has_a_code(name, builtin, code):
    kind = getattr(errors, name)
    assert issubclass(kind, errors.SpotlessError)
    assert issubclass(kind, builtin)
    assert kind.exit_code == code
    assert str(kind("what must hold")) == "what must hold"


@pytest.mark.parametrize("value", [0, -1.5, float("nan"), float("inf")])
def test_positive(value):
    check_positive("a", 1e-300)
    with pytest.raises(errors.SettingError, match=rf"^`a` must be positive, but got {value}\. Do this\.$"):
        check_positive("a", value, hint="Do this.")


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_not_negative(value):
    check_not_negative("a", 0)
    with pytest.raises(errors.SettingError, match=rf"^`a` must be zero or positive, but got {value}\.$"):
        check_not_negative("a", value)


def test_choice():
    check_choice("kind", "b", ("a", "b"))
    with pytest.raises(errors.SettingError, match=r"`kind` must be one of 'a', 'b', but got 'c'\."):
        check_choice("kind", "c", ("a", "b"))


def test_finite():
    check_finite("The step", torch.ones(3))
    with pytest.raises(
        errors.NumericsError, match=r"The step must be finite, but 2 of 3 entries are NaN or infinite\. X"
    ):
        check_finite("The step", torch.tensor([1.0, torch.nan, torch.inf]), hint="X")
