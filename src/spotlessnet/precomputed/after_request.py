"""The statistics that the next request finds: those of a network which never saw the rows of this one."""

from dataclasses import asdict, replace

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.effect import Effect
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.statistics import Statistics

LEAST = 100
"""The fewest retained rows that may stand for all of them."""


def after_request(
    statistics: Statistics,
    trained: Trained,
    forget: Data,
    weights: Float[Tensor, " P"],
    *,
    retain: Data,
    salt: bytes | None = None,
    due: str = "",
) -> Statistics:
    r"""The statistics that the next request finds, for the weights that this one led to.

    They are written anew from retained rows at the new weights, as the first ones were: from all of them, bit for bit
    what would be there without the rows of the request; from some, an estimate of it, in which only those are. That
    takes as long as writing the first ones, from so many rows.

    There is no other way. Taking the cohort's sums out of the old ones leaves it readable: of $H_D$ only a low rank
    $U \Lambda U^\top$ is known, and $U \Lambda U^\top - H_f$ has what the cohort's curvature holds outside the span of
    $U$ in its eigenvectors, entry by entry.

    **Arguments:**

    - `trained`: the network **before** the request.
    - `weights`: the network after it, noise included.
    - `retain`: rows that the statistics hold and the request does not remove: all of them, or at least `LEAST`.
    - `salt`: of the new keys; a secret one unless given. Under the old one, whoever kept the statistics before could
      see which keys are gone. Where some retained rows are not at hand, their keys cannot be made anew: the
      old salt stays.
    - `due`: when what the request did to its rows must be destroyed; it is kept apart from the statistics' file.
    """
    statistics.check_holds(forget)
    keys = statistics.keys.without(forget)
    unknown = keys.count_unknown(retain)
    if unknown or len(retain) < min(LEAST, len(keys)):
        raise MismatchError(
            f"The statistics hold {len(keys)} rows beside those of the request, and are written anew from these, or "
            f"from at least {LEAST} of them, but {len(retain)} rows were given, {unknown} of them others. Give rows "
            "that stay; without them, destroy the statistics and precompute new ones."
        )
    is_whole = len(retain) == len(keys)
    anew = precompute(trained.at(weights), retain, **asdict(statistics.written), salt=salt if is_whole else keys.salt)
    keys = anew.keys if is_whole else keys
    trained_on = statistics.trained_on or statistics.count
    whole = replace(_scaled(anew, len(keys) / len(retain)), keys=keys, trained_on=trained_on)
    return replace(whole, after_requests=True, effects=_effects(statistics, trained, forget, weights, due))


def _effects(
    statistics: Statistics, trained: Trained, forget: Data, weights: Float[Tensor, " P"], due: str
) -> tuple[Effect, ...] | None:
    """What all requests so far did; not known any more if that of an earlier one is not."""
    before = statistics.effects if statistics.after_requests else ()
    if before is None:
        return None
    effect = Effect.of(trained, trained.at(weights), forget)
    return before + (() if effect is None else (replace(effect, due=due),))


def _scaled(statistics: Statistics, factor: float) -> Statistics:
    """Sums over some rows as sums over all."""
    if factor == 1:
        return statistics
    return replace(
        statistics,
        gradient=factor * statistics.gradient,
        values=None if statistics.values is None else factor * statistics.values,
        outside=factor * statistics.outside,
        error=factor * statistics.error,
        diagonal=None if statistics.diagonal is None else factor * statistics.diagonal,
        kronecker=None if statistics.kronecker is None else statistics.kronecker.map(lambda e: factor * e),
    )
