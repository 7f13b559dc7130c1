"""What the receipt of a request cannot say, in sentences that it carries."""

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.split import Request
from spotlessnet.core.trained import Trained
from spotlessnet.requests.loading import LoadedRequest
from spotlessnet.requests.recorded import limits_of_record
from spotlessnet.training.kept import KNOW_THE_ROWS


def copies_in_words(request: Request) -> str:
    """What copies among the kept rows mean for a request."""
    count = request.copies or 0
    rows = "1 kept row has" if count == 1 else f"{count} kept rows have"
    return f"{rows} the very inputs of a forgotten row: what such copies taught the network stays"


def _limits_of_norms(trained: Trained, gaussian: Gaussian) -> list[str]:
    """What running statistics may still carry; nothing where training is seen to have left them alone."""
    if gaussian.buffers is None and (trained.statistics_moved or trained.may_have_moved_statistics):
        return ["BatchNorm's running statistics were gathered with the forgotten rows and are left as they were."]
    estimated = "batchnorm_statistics" in gaussian.diagnostics
    if gaussian.buffers is not None and trained.init_buffers is None and not estimated:
        return [
            "BatchNorm's running statistics began at those of the original, for `init` has none: a moving average has "
            "replaced them, all but the little that so many steps leave."
        ]
    return []


def limits_of(
    opened: LoadedRequest, gaussian: Gaussian, report: AuditReport | None, *, unchanged: bool = False
) -> list[str]:
    """What the receipt of this request cannot say."""
    limits = [f"Assumed: {text}." for text in dict.fromkeys(gaussian.diagnostics.assumed)]
    limits += _limits_of_norms(opened.trained, gaussian)
    if unchanged:
        limits.append("Nothing was changed: every weight came back bit for bit, so nothing was forgotten.")
    frozen = sum(p.numel() for p in opened.trained.model.parameters()) - opened.trained.size
    if frozen:
        limits.append(f"{frozen} frozen parameters were not changed; what they know of the rows stays.")
    limits.append("The optimiser's state, if kept, carries the forgotten rows too: discard it.")
    limits.append("The list of what to forget and the folder `private` name or betray the rows: keep or destroy them.")
    if opened.split.request.copies:
        limits.append(f"{copies_in_words(opened.split.request)}. Ask for them too.")
    if opened.statistics is not None:
        limits.append(
            "The network and the statistics that were given to this request know the forgotten rows: destroy both. "
            "Whoever keeps them can read rows back from what changed."
        )
    if opened.statistics is not None and not opened.may_write_statistics:
        limits.append(opened.no_statistics)
    if opened.fold_models is not None:
        limits.append(
            "The file of the fold models holds the network from before this request, and fold models that were trained "
            "on forgotten rows: destroy it. They serve no other request. For the next one train new ones on retained "
            "rows alone, with `spotless precompute --folds 2` on the new network."
        )
    if opened.case.training is not None:
        limits += limits_of_record(opened.case)
    if opened.case.seed is not None and not gaussian.is_noiseless:
        limits.append("The noise came from a published seed: anyone can take it away again.")
    if report is None:
        limits.append("No audit was run: how much was forgotten has not been measured.")
    else:
        limits.append("The audit is of the method on this request over several seeds, not of this one file.")
        limits += [KNOW_THE_ROWS] if KNOW_THE_ROWS in report.limits else []
    return limits
