"""What a request does beside its method: statistics of both kinds made anew, and a look at the damage."""

from spotlessnet.core.answers import CHECKED
from spotlessnet.core.buffers import MOST
from spotlessnet.core.scrub import Scrub, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.step_cost import writing_cost
from spotlessnet.precomputed.written import Written
from spotlessnet.requests.loading import LoadedRequest


def written_after(opened: LoadedRequest) -> Written | None:
    """How statistics for the next request will be written, where they will be."""
    return opened.statistics.written if opened.statistics is not None and opened.may_write_statistics else None


def work_beside(trained: Trained, split: Split, scrub: Scrub, sizes: Sizes, next_request: Written | None) -> Work:
    """All of it together."""
    work = _looking(split, sizes) + _running_statistics(trained, split, scrub, sizes)
    return work if next_request is None else work + writing_cost(next_request, sizes)


def _running_statistics(trained: Trained, split: Split, scrub: Scrub, sizes: Sizes) -> Work:
    """Those of BatchNorm at the scrubbed weights, and once more at those that noise leads to."""
    if not trained.statistics_moved or split.kept is None:
        return Work.sure(0.0)
    return Work.sure((1 + scrub.is_noisy) * min(len(split.kept), MOST) * sizes.answer)


def _looking(split: Split, sizes: Sizes) -> Work:
    """Two networks answer a few rows that stay, once each, before anything is written."""
    held_out = split.validation if split.validation is not None else split.test
    rows = sum(min(CHECKED, len(data)) for data in (split.kept, held_out) if data is not None)
    return Work.sure(2 * rows * sizes.answer)
