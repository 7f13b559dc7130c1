"""Noise on released weights, and what it proves over a sequence of requests; see `core.gaussian_dp`."""

from spotlessnet.core.gaussian_dp import delta_of as delta_of
from spotlessnet.core.gaussian_dp import epsilon_of as epsilon_of
from spotlessnet.core.gaussian_dp import sigma_for as sigma_for
