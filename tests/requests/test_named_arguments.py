"""Messages of `sn.unlearn` name its arguments, not the flags of the command; none is passed over."""

import pytest

import spotlessnet as sn
from spotlessnet.core.errors import DataError, SettingError
from tests.requests.small import FORGET, problem


def test_a_device_that_the_network_is_not_on_is_not_passed_over():
    """The fault before: the word was ignored."""
    model, _, x, y = problem()
    with pytest.raises(SettingError, match=r"stays where it is, on cpu, but `device` is 'cuda'. Move it yourself"):
        sn.unlearn(model, (x, y), forget=FORGET, device="cuda")


def test_what_is_wrong_with_the_data_is_told_of_the_argument():
    model, _, x, y = problem()
    with pytest.raises(DataError, match=r"^`data`: Inputs and labels must have the same number of rows"):
        sn.unlearn(model, (x, y[:3]), forget=FORGET)
    with pytest.raises(DataError, match=r"^`test`: Inputs and labels must have the same number of rows"):
        sn.unlearn(model, (x, y), forget=FORGET, test=(x, y[:3]))
