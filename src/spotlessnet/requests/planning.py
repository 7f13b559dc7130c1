"""The plan of a request: all of it read and checked, and what it will cost beside retraining, before it is begun."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.other_recipe import OTHER_RECIPE
from spotlessnet.core.answers import CHECKED, DOUBT
from spotlessnet.core.buffers import MOST
from spotlessnet.core.errors import ResourceError, count_of, seconds_in_words, size_in_words
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import GIB, LEFT, available, memory_limit, working
from spotlessnet.core.scrub import Scrub, Sizes, Work, declared_by
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained, running_norms
from spotlessnet.core.trainer import name_of
from spotlessnet.operators.cost import with_slow
from spotlessnet.precomputed.step_cost import writing_cost
from spotlessnet.precomputed.written import Written
from spotlessnet.requests.case import Case
from spotlessnet.requests.loading import LoadedRequest, cohort_of, load_network, load_rows, need_inputs
from spotlessnet.requests.methods import changed, check_method, default, described, may_be_cheaper, scrub_of, too_dear
from spotlessnet.requests.recorded import limits_of_record
from spotlessnet.requests.speed_of_memory import seconds_per_byte
from spotlessnet.store.beside_weights import limits_of_file
from spotlessnet.store.receipts import ASSUMED
from spotlessnet.training.kept import KNOW_THE_ROWS
from spotlessnet.training.tuning import Tuning, work_of_rate

TIMED, AT_MOST = 3, 12
"""Steps that are timed after a first one: so many at least, and more while they take less than `LONG` together."""

LONG = 0.2
"""Seconds of timing that are enough, whatever else the machine does meanwhile."""

ROWS = 64
"""Rows in each of them where the recipe does not say."""

COPIES = 10
"""Vectors of all weights that a run holds at once: weights, gradient and momentum or a solver's four, sums in float64,
modules that were copied, mean and noise."""

READ = 256
"""Rows that curvature reads at once."""

REORDERED = 4.0
"""Copies in an order of its own that a convolution makes of what enters and what comes back, in training."""


BESIDE = ", beside Python, torch, the network and the data, and without an audit"
"""What the memory of a plan leaves out."""


@dataclass(frozen=True)
class Estimate:
    """Seconds and memory of a request, beside retraining on the same machine.

    **Arguments:**

    - `seconds`, `at_most`: usual, and if every solver runs to its limit; NaN for a method that nobody has counted.
    - `retraining`: seconds of one retraining; NaN where the recipe is not known.
    - `memory`, `available`: bytes, beside the network and the data themselves.
    - `epoch`: seconds of one pass over the retained rows and back, as in training.
    - `by`: the function of the user's own that trains, where the method lets it: nobody has timed that.
    """

    seconds: float
    at_most: float
    retraining: float
    memory: float
    available: float
    epoch: float = math.nan
    by: str = ""

    def lines(self) -> list[str]:
        """For the plan."""
        memory = f"memory  about {size_in_words(self.memory)} of {size_in_words(self.available)} available{BESIDE}"
        if math.isnan(self.seconds):
            return [f"time    not known: {self._why_not_known()}", memory]
        share = self.seconds / self.retraining
        known = math.isfinite(share)
        told = f"one retraining takes {seconds_in_words(self.retraining)}"
        retrain = told if known else "retraining: its recipe is not known"
        epoch = "" if math.isnan(self.epoch) else f", one epoch {seconds_in_words(self.epoch)}"
        ratio = f" ({share:.1%} of one retraining)" if known else ""
        most = f" ({self.at_most / self.retraining:.0%})" if known else ""
        time = f"time    about {seconds_in_words(self.seconds)}{ratio}, at most {seconds_in_words(self.at_most)}{most}"
        own = f"; in plain steps, and {self.by} may do more" if self.by else ""
        return [f"{time}; {retrain}{epoch}{own}", memory]

    def _why_not_known(self) -> str:
        if not self.by:
            return "nobody has counted what this method does (its `cost`)"
        epoch = "" if math.isnan(self.epoch) else f"; one epoch of plain steps takes {seconds_in_words(self.epoch)}"
        return f"it is one training by {self.by}, and nobody recorded how long that takes{epoch}"

    def check_memory(self) -> None:
        """Refuse what would not fit."""
        if self.memory > self.available:
            raise ResourceError(
                f"This would need about {size_in_words(self.memory)}, but {size_in_words(self.available)} may be used. "
                "Take a method that needs less (see --dry-run), a smaller cohort, or another machine."
            )


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A request that was checked and not yet begun.

    **Arguments:**

    - `opened`: everything that was read.
    - `scrub`: the method, built once for the whole request.
    - `cost`: what it will take beside retraining.
    - `instead`: why the method is not the usual one, if it is not.
    - `audit`: what an audit will take, in lines for people; none where none was asked for.
    """

    opened: LoadedRequest
    scrub: Scrub
    cost: Estimate
    instead: str = ""
    audit: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The method's name, parts joined by `+`."""
        return described(self.scrub)[0]

    def within_memory(self) -> AbstractContextManager[None]:
        """A block in which operators keep within the limit of the case, if it has one."""
        return within_memory(self.opened)

    def lines(self) -> list[str]:
        """For people."""
        case, split = self.opened.case, self.opened.split
        budget = described(self.scrub)[1].get("budget")
        reasons = [default(case)[1], *([self.instead] if self.instead else [])]
        why = f" (none was named, and {'; '.join(reasons)})" if case.method is None else ""
        lines = [f"forget  {split.request}; {count_of(len(split.retain), 'row')} stay, {len(split.forget)} go"]
        lines += [f"copies  {copies_in_words(split.request)}"] if split.request.copies else []
        lines += [f"doubt   {DOUBT}"] if self.opened.known and self.opened.known.is_nothing else []
        lines.append(f"method  {self.method}" + (f" with noise for {budget}" if budget else "") + why)
        for link, own in changed(self.scrub).items():
            lines.append(f"        {link}: {', '.join(f'{k}={v}' for k, v in own.items())}")
        lines += self.cost.lines()
        lines += self._norms()
        lines.append(f"noise   {self._noise()}")
        return [*lines, *self.audit]

    def _norms(self) -> list[str]:
        """What becomes of BatchNorm's running statistics, where there are any that may know the rows."""
        trained = self.opened.trained
        if trained.may_have_moved_statistics:
            return [
                "norms   BatchNorm's running statistics stay as they are and may come from the forgotten rows: give "
                "`init` with its buffers, or a recipe with `freeze_statistics=False`"
            ]
        moved = "norms   training moved BatchNorm's running statistics: they are made anew without the forgotten rows"
        names = ", ".join(trained.moved_buffers[:3])
        own = f"buffers training moved {names}: they stay as they are and carry the rows, unless the method trains anew"
        return [line for line, is_said in ((moved, trained.statistics_moved), (own, trained.moved_buffers)) if is_said]

    def _noise(self) -> str:
        if not self.scrub.is_noisy:
            return "none: the method adds none"
        return "secret" if self.opened.case.seed is None else "from the seed given: for experiments only"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    # What was read holds the network and all rows: nobody wants those where a plan is shown.
    __repr__ = __str__


def plan_of(case: Case) -> Plan:
    """Everything short of the work: imports, checks, estimate, and the refusal of what would not fit."""
    with working("reading and checking"):
        return _plan_of(case)


def check_words(case: Case) -> None:
    """Raise where method, settings or list cannot be what a person meant; neither network nor rows are read."""
    check_method(case)
    cohort_of(case)


def _plan_of(case: Case) -> Plan:
    need_inputs(case, "forget")
    check_method(case)  # a misspelt setting should not cost the reading of anything
    network = load_network(case)
    # Built once, before the rows are read: a value that the method refuses should not cost their reading.
    scrub = scrub_of(case, network.statistics, network.reference, network.fold_models)
    opened = load_rows(case, network)
    scrub.check_enough_is_kept(opened.split)
    scrub.check_needs(opened.trained, opened.split)
    instead = too_dear(opened.trained, opened.split, scrub) if may_be_cheaper(case) else ""
    if instead:
        scrub = scrub_of(case, network.statistics, network.reference, network.fold_models, cheap=True)
    cost = estimate(opened.trained, opened.split, scrub, case.memory_limit, next_request=written_after(opened))
    cost.check_memory()
    return Plan(opened, scrub, cost, instead)


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
    if running_norms(trained.model) and gaussian.buffers is not None and trained.init_buffers is None and not estimated:
        return [
            "BatchNorm's running statistics began at those of the original, for `init` has none: a moving average has "
            "replaced them, all but the little that so many steps leave."
        ]
    return []


def limits_of(
    opened: LoadedRequest, gaussian: Gaussian, report: AuditReport | None, *, unchanged: bool = False
) -> list[str]:
    """What the receipt of this request cannot say."""
    limits = [f"{ASSUMED}{text}." for text in dict.fromkeys(gaussian.diagnostics.assumed)]
    limits += _limits_of_norms(opened.trained, gaussian)
    if unchanged:
        limits.append("Nothing was changed: every weight came back bit for bit, so nothing was forgotten.")
    frozen = sum(p.numel() for p in opened.trained.model.parameters()) - opened.trained.size
    if frozen:
        limits.append(f"{frozen} frozen parameters were not changed; what they know of the rows stays.")
    limits.append("The optimiser's state and averaged weights (EMA, SWA), if kept, carry the rows too: destroy them.")
    weights = opened.case.weights
    if weights is not None and weights.suffix != ".safetensors":  # which hold weights alone
        limits += limits_of_file(weights)
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
            "on forgotten rows: destroy it, and statistics of that network too, such as `spotless precompute` wrote "
            "beside it: rows can be read back from them. They serve no other request. For the next one train new ones "
            "on retained rows alone, with `spotless precompute --folds 2` on the new network."
        )
    if opened.case.training is not None:
        limits += limits_of_record(opened.case)
    if opened.case.seed is not None and not gaussian.is_noiseless:
        limits.append("The noise came from a published seed: anyone can take it away again.")
    if report is None:
        limits.append("No audit was run: how much was forgotten has not been measured.")
    else:
        limits.append(
            "The audit looks at the method on this request over several seeds; of the written network itself it sees "
            "only what one network can show."
        )
        limits += [one for one in report.limits if one == KNOW_THE_ROWS or one.startswith(OTHER_RECIPE)]
    return limits


def estimate(
    trained: Trained,
    split: Split,
    scrub: Scrub,
    limit: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    next_request: Written | None = None,
) -> Estimate:
    """Time a few batches, count what the method will do, and look at the memory that is free.

    **Arguments:**

    - `limit`: GiB that may be used, if less than what is free.
    - `clock`: what tells seconds; `time.process_time` for those of the processor, whatever else the machine does.
    - `next_request`: how statistics will be written for it, where this one is served from such.
    """
    sizes = Sizes.of(trained, split)
    # Seconds of one operation, as a row's gradient takes them on this machine.
    each = seconds_per_row(trained, split, clock) / sizes.gradient
    work = scrub.foreseen(trained, split) + work_beside(trained, split, scrub, sizes, next_request)
    moved = work.touched * seconds_per_byte(trained.device, clock) if work.touched else 0.0
    epoch = len(split.retain) * sizes.gradient * each if split.kept is not None else math.nan
    free = available(trained.device)
    trains = any("recipe" in entry.needs for entry in declared_by(scrub))
    return Estimate(
        seconds=work.usual * each + moved,
        at_most=work.most * each + moved,
        retraining=math.nan if trained.epochs is None else trained.epochs * epoch,
        memory=_vectors(trained) + max(work.bytes, _passing(trained, sizes, scrub, limit)),
        available=free if limit is None else min(free, limit * GIB),
        epoch=epoch,
        by=name_of(trained.trainer) if trained.trainer is not None and trains else "",
    )


def written_after(opened: LoadedRequest) -> Written | None:
    """How statistics for the next request will be written, where they will be."""
    return opened.statistics.written if opened.statistics is not None and opened.may_write_statistics else None


def work_beside(trained: Trained, split: Split, scrub: Scrub, sizes: Sizes, next_request: Written | None) -> Work:
    """All of it together."""
    work = _looking(split, sizes) + _running_statistics(trained, split, scrub, sizes)
    if isinstance(scrub, Tuning) and scrub.looks_for_rate(trained):
        work += work_of_rate(sizes.n, sizes)
    return work if next_request is None else work + writing_cost(next_request, with_slow(trained, split))


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


def seconds_per_row(trained: Trained, split: Split, clock: Callable[[], float] = time.perf_counter) -> float:
    """Wall time of one row's part in a step of training, in batches: there and back, and the weights moved.

    The mean of several, not the best: where other programs run beside it, they will do so later as well.
    """
    rows = min(ROWS if trained.recipe is None else trained.recipe.batch_size, len(split.whole))
    w = trained.weights.clone().requires_grad_()
    pace = torch.zeros_like(trained.weights)
    batch = next(iter(trained.batches(split.whole.select(range(rows)), rows)))
    taken, steps = 0.0, -1  # the first one warms up
    while steps < TIMED or (steps < AT_MOST and taken < LONG):
        began = clock()
        g = torch.autograd.grad(trained.losses(batch.x, batch.y, w).sum(), w)[0]
        with torch.no_grad():
            pace.mul_(0.9).add_(g)
            w.sub_(pace, alpha=0.0)  # as much work as a step, which must not lead anywhere
        if trained.device.type == "cuda":
            torch.cuda.synchronize(trained.device)
        taken, steps = (taken + clock() - began if steps >= 0 else 0.0), steps + 1
    return taken / (steps * rows)


def within_memory(opened: LoadedRequest) -> AbstractContextManager[None]:
    """A block in which operators keep within the limit of a case, if it has one."""
    if (limit := opened.case.memory_limit) is None:
        return nullcontext()
    # On a GPU the allocator tells what is held besides; elsewhere it is taken off here.
    return memory_limit(limit * GIB if opened.trained.device.type == "cuda" else _pieces(opened.trained, limit))


def _vectors(trained: Trained) -> float:
    return float(COPIES * trained.size * trained.weights.element_size())


def _pieces(trained: Trained, limit: float | None) -> float:
    """Bytes that are left for what passes in pieces within so many GiB; vectors cannot be cut."""
    return math.inf if limit is None else max(limit * GIB - _vectors(trained), LEFT * limit * GIB)


def _passing(trained: Trained, sizes: Sizes, scrub: Scrub, limit: float | None) -> float:
    """Bytes of the rows that go through the network together: a batch of training, or as many as curvature takes."""
    read = {word for entry in declared_by(scrub) for word in (*entry.needs, *entry.reads)}
    rows = sizes.n + sizes.k
    if "recipe" in read and "statistics" not in read:
        batch = ROWS if trained.recipe is None else trained.recipe.batch_size
        return min(batch, rows) * (sizes.row.each() + REORDERED * sizes.row.convolved)
    return min(min(READ, rows) * sizes.row.each(1), sizes.room, _pieces(trained, limit))
