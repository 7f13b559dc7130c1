"""Precompute for later requests: planned and refused before any work, then statistics and fold models in one folder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, check_choice
from spotlessnet.core.row_keys import SALT
from spotlessnet.precomputed.grouped import has_column
from spotlessnet.requests.case import Case, inputs_of
from spotlessnet.requests.folder import Folder, follows_request
from spotlessnet.requests.loading import LoadedRequest, open_case
from spotlessnet.requests.planning import within_memory
from spotlessnet.requests.serving import FOLD_MODELS, STATISTICS
from spotlessnet.training.many import Executor

Kind = Literal["exact", "monte carlo", "empirical"]


@dataclass(frozen=True)
class Precomputed:
    """The files that were written, and the SHA-256 of the statistics."""

    statistics: Path
    sha256: str
    fold_models: Path | None = None

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [self.statistics, *([] if self.fold_models is None else [self.fold_models])]


@dataclass(frozen=True, eq=False)
class Precomputation:
    """What will be kept: sums over the rows of a case, and fold models where asked for.

    **Arguments:**

    - `rank`: directions of curvature to keep; 0 keeps none.
    - `diagonal`: how the Fisher diagonal is found; `None` leaves it out.
    - `folds`, `repeats`: parts of the rows, and how often they are divided; a fold model for each part.
    - `groups`: the column that says which rows lie in one fold; `None` for every row by itself.
    - `after_requests`: the network has served requests, which later ones must not take back.
    - `executor`: how fold models are trained, and where finished ones are kept.
    """

    opened: LoadedRequest
    rank: int
    diagonal: Kind | None
    folds: int
    repeats: int
    groups: str | None = None
    after_requests: bool = False
    executor: Executor = field(default_factory=Executor)

    @property
    def size(self) -> int:
        """About the bytes that the statistics take: kept directions, weights, gradient and diagonal."""
        trained = self.opened.trained
        return (min(self.rank, trained.size) + 3) * trained.size * trained.weights.element_size()

    def __str__(self) -> str:
        rows, P = len(self.opened.split.retain), self.opened.trained.size
        plan = (
            f"precompute statistics of {rows} rows of a network with {P} weights in about {self.size / 2**20:.3g} MiB"
        )
        if not self.folds:
            return plan
        models, trainings = self.folds * self.repeats, (self.folds - 1) * self.repeats
        return f"{plan}, and train {models} fold models: as long as {trainings} trainings"

    def run(self, *, resume: bool = False) -> Precomputed:
        """Do it, and write it to the case's folder."""
        from spotlessnet.precomputed.precompute import precompute
        from spotlessnet.precomputed.statistics_files import write_statistics

        case, trained, data = self.opened.case, self.opened.trained, self.opened.split.retain
        case.need("out")
        assert case.out is not None
        folder = Folder(case.out, resume, case.private_days)
        folder.check(inputs_of(case))
        seed = case.seed or 0
        # Keys under a published salt can be tested by anybody, so it is one only where all else is published too.
        salt = None if case.seed is None else case.seed.to_bytes(SALT, "big", signed=True)
        with folder.claimed(), within_memory(self.opened):
            kept = precompute(
                trained,
                data,
                rank=self.rank,
                diagonal=self.diagonal,
                seed=seed,
                salt=salt,
                after_requests=self.after_requests,
            )
            digest = write_statistics(case.out / STATISTICS, kept, replace=resume)
            fold_models = self._train_fold_models(case.out, seed, salt, resume=resume) if self.folds else None
        return Precomputed(case.out / STATISTICS, digest, fold_models)

    def _train_fold_models(self, out: Path, seed: int, salt: bytes | None, *, resume: bool) -> Path:
        from spotlessnet.precomputed.fold_model_files import write_fold_models
        from spotlessnet.precomputed.fold_models import train_fold_models

        split = self.opened.split
        made = train_fold_models(
            self.opened.trained,
            split.retain,
            folds=self.folds,
            repeats=self.repeats,
            groups=self.groups,
            held=split.validation,
            seed=seed,
            salt=salt,
            after_requests=self.after_requests,
            executor=self.executor,
        )
        write_fold_models(out / FOLD_MODELS, made, replace=resume)
        return out / FOLD_MODELS


def precomputation_of(
    case: Case,
    *,
    rank: int = 200,
    diagonal: str = "monte carlo",
    folds: int = 0,
    repeats: int = 1,
    groups: str | None = None,
    after_requests: bool = False,
    executor: Executor | None = None,
) -> Precomputation:
    """What a case asks for, refused here where it cannot be done. Settings as for `Precomputation`.

    `groups`: unless said, the case's column of ids where the data have it; `"none"` for every row by itself.
    """
    from spotlessnet.precomputed.fold_models import begin_fold_models

    if repeats > 1 and not folds:
        raise NeedError("--repeats divides the rows among fold models, but none are trained. Give --folds 2 as well.")
    if groups is not None and not folds:
        raise NeedError("--groups says which rows lie in one fold, but there are no folds. Give --folds 2 as well.")
    if executor is not None and executor != Executor() and not folds:
        raise NeedError("--keep-trainings and --workers are for fold models, but none are trained. Give --folds 2 too.")
    check_choice("diagonal", diagonal, ("exact", "monte carlo", "empirical", "none"))
    opened = open_case(case, needs_forget=False)
    executor = executor or Executor()
    column = _column(case, opened.split.retain, groups)
    if folds:
        begin_fold_models(opened.trained, opened.split.retain, folds, column)  # before the statistics, which take long
        executor.check(opened.trained)
    kind = None if diagonal == "none" else cast(Kind, diagonal)
    # Where the receipt of a request lies beside the weights, nobody has to say that there was one.
    after = after_requests or follows_request(case.weights)
    return Precomputation(opened, rank, kind, folds, repeats, column, after, executor)


def _column(case: Case, data: Data, groups: str | None) -> str | None:
    """Who belongs together: the column that was asked for, or that of the ids that requests will name."""
    if groups is not None:
        return None if groups == "none" else groups
    own = case.id_column
    return own if own not in (None, "row") and has_column(data, own) else None
