"""Per query: what one answer about one input gives away, input by input."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.bounds.black_box import chosen, data_of, gap_error, jacobian_of, white_box_nats
from spotlessnet.bounds.dense_kl import dense_kl
from spotlessnet.core.data import Data
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import track
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.precision import in_format


def per_query(scrubbed: Gaussian, reference: Gaussian, trained: Trained, data: Data) -> Float[Tensor, " N"]:
    r"""The black-box divergence of each row of `data` by itself, with the full $C \times C$ covariance.

    The values do not add up to that of all rows together: they share one noise. As for `BlackBox`, everything is in
    float64 and capped at the white box, which is also read where rounding could hide some of the nats.
    """
    exact = in_format(trained, torch.float64)
    here, there = exact.at(scrubbed.mean, scrubbed.buffers), exact.at(reference.mean, reference.buffers)
    answers = here.predict(data).flatten(1), there.predict(data).flatten(1)
    gaps = answers[0] - answers[1]
    if scrubbed.is_noiseless or reference.is_noiseless:
        # Without noise an answer that differs tells everything, and an equal one nothing.
        same = (gaps == 0).all(dim=1) & (scrubbed.is_noiseless and reference.is_noiseless)
        return torch.where(same, 0.0, math.inf).cpu()
    most = white_box_nats(scrubbed, reference)
    covariances = (scrubbed.covariance.double(), reference.covariance.double())
    nats = []
    for i in track(range(len(data)), "nats per query"):
        one = data.select([i])
        S = covariances[0].pushforward(jacobian_of(here, one))
        S0 = covariances[1].pushforward(jacobian_of(there, one))
        found = dense_kl(gaps[i], S, S0, gap_error=gap_error(answers[0][i], answers[1][i]))
        # Data processing: linearised, one answer may seem to tell more than the weights, but cannot.
        nats.append(min(found.nats + reference.price, most) if found.is_bound else most)
    return torch.tensor(nats, dtype=torch.float64)


def per_query_by_set(
    scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split, *, count: int = 100, seed: int = 0
) -> Mapping[str, Float[Tensor, " _"]]:
    """`per_query` for up to `count` rows each of the forgotten, the retained and, where there are, the test data."""
    sets = ["forget", "retain"] if split.test is None else ["forget", "retain", "test"]
    return {on: per_query(scrubbed, reference, trained, chosen(data_of(split, on), count, seed)) for on in sets}
