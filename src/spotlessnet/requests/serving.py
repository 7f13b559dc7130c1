"""One request from the asking to the receipt: what `sn.unlearn` and `spotless scrub` both call."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.core.answers import ACCEPTED, MOST, check_damage, utility_of
from spotlessnet.core.data import GoneRows
from spotlessnet.core.errors import DamageError, NumericsError, WornError, count_of
from spotlessnet.core.files import Look
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import Meter
from spotlessnet.core.row_keys import next_salt
from spotlessnet.core.scrub import Scrub, drawn_network
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import name_of
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.statistics_files import write_statistics
from spotlessnet.requests.audits import Audit, audit_plan, audited, note_bank, with_header, write_report
from spotlessnet.requests.case import Case, as_flag, inputs_of
from spotlessnet.requests.effects import keep_effect
from spotlessnet.requests.folder import PRETRAINED, SCRUBBED, Folder
from spotlessnet.requests.lineage import files_used, used_once
from spotlessnet.requests.loading import LoadedRequest, described_inputs, need_inputs, network_of, sha256_of
from spotlessnet.requests.methods import described
from spotlessnet.requests.planning import Plan, check_words, limits_of, plan_of
from spotlessnet.requests.recorded import keep_record, lineages_of
from spotlessnet.store.checkpoints import following, load_into, read_weights, weights_as_bytes, write_weights
from spotlessnet.store.pretrained import is_pretrained, save_anew, save_pretrained
from spotlessnet.store.receipts import NoiseSeed, committed, due_in, identity_of, plain, statement, write_receipt

STATISTICS, REFUSAL = "statistics.safetensors", "refusal.json"
FOLD_MODELS = "fold-models.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class Unlearned:
    """What came of a request to forget.

    **Arguments:**

    - `receipt`: what was run, on what, with what result; written to disk only where a folder was asked for.
    - `plan`: what was checked before the work, and what it was estimated to cost beside retraining; `None` if `again`.
      It holds what was read, network and rows from before the request: let go of the result, and of pickles of it.
    - `report`: the audit's, if there was one.
    - `statistics`: for the next request, where this one was served from such; never those given.
    - `folder`: where everything was written, if anywhere.
    - `salt`: opens the commitments of the receipt: keep it as private as the list of what was forgotten.
    - `again`: the request had been served before, and this is that receipt.
    - `exact`: what was measured with all digits, as private as the salt: it would confirm a guess at the rows.
    """

    receipt: dict[str, Any]
    load_model: Callable[[], nn.Module]
    plan: Plan | None = None
    report: AuditReport | None = None
    statistics: Statistics | None = None
    folder: Path | None = None
    salt: bytes = b""
    again: bool = False
    exact: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        told = self.receipt["predicate"]
        verdict = "no audit" if self.report is None else self.report.outcome
        where = "nothing written" if self.folder is None else f"folder={str(self.folder)!r}"
        return (
            f"Unlearned({told['method']}, {count_of(told['request']['matched'], 'row')} forgotten, {verdict}, {where})"
        )

    @cached_property
    def model(self) -> nn.Module:
        """The scrubbed network: an ordinary module, a copy of the one that was given, in eval mode."""
        return self.load_model()

    def save_pretrained(self, folder: str | Path, *, merge: bool = False) -> None:
        """Write the scrubbed network as a folder that `from_pretrained` reads, where it is one of Hugging Face.

        **Arguments:**

        - `merge`: add LoRA adapters into the weights they go on; otherwise they are written alone, as PEFT reads them.
        """
        save_pretrained(self.model, Path(folder), merge=merge)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What the method measured and assumed on the way, seconds, and the cost in utility; exact while kept."""
        return dict(self.receipt["predicate"]["about"] if self.exact is None else self.exact)


@dataclass(frozen=True)
class Unwritten:
    """Stands in for the folder of a request that writes nothing: a salt, which lives as long as the result."""

    salt: bytes
    destroy_after: datetime

    @staticmethod
    def new(days: int) -> "Unwritten":
        """With a salt of its own."""
        return Unwritten(secrets.token_bytes(32), due_in(days))

    def identity(self, request: Mapping[str, Any]) -> str:
        """As a folder's."""
        return identity_of(request, self.salt)


def request_of(case: Case, looks: Mapping[str, Look], plan: Plan | None = None) -> dict[str, Any]:
    """All that decides the result of a request; the same values are the same request.

    **Arguments:**

    - `plan`: what was read, needed where a case holds objects: of those, digests take the place of files'.
    """
    left_out = ("out", "memory_limit", "device", "keep_private", "max_damage", "accept_damage")
    told = {name: value for name, value in case.given().items() if name not in left_out}
    found = {"fields": told, "digests": {name: look.digests for name, look in looks.items()}}
    if plan is not None and case.objects:
        found["objects"] = _digests_of_objects(case, plan)
    return plain(found)


def _digests_of_objects(case: Case, plan: Plan) -> dict[str, Any]:
    opened, trained = plan.opened, plan.opened.trained
    vectors = {"weights": trained.weights, "init": trained.init, "reference": opened.reference}
    found: dict[str, Any] = {name: sha256_of(value) for name, value in vectors.items() if value is not None}
    found["rows"] = {name: held.sha256 for name, held in opened.contents.items()}
    found["forget"] = sorted(opened.ids)
    found["method"] = described(plan.scrub)
    recipe = None if trained.recipe is None else trained.recipe.described()
    by = {"recipe": recipe} if trained.trainer is None else {"trainer": name_of(trained.trainer)}
    found["training"] = {"loss": repr(trained.loss), **by}
    # Statistics and fold models belong to these weights and rows alone, which was checked.
    found["precomputed"] = [name for name in ("statistics", "fold_models") if getattr(case, name) is not None]
    return found


def serve(
    case: Case,
    *,
    resume: bool = False,
    audit: Audit | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Unlearned:
    """Forget what a case asks for; with `case.out` also write network and receipt there, the receipt last.

    Everything that can be refused is refused before the work: nothing is written before that.

    **Arguments:**

    - `resume`: go on where an earlier run of the same request stopped; a finished one is given back as it is.
    - `audit`: how to measure what is left, or `None`.
    - `say`: called with each line of the plan.
    """
    need_inputs(case, "forget")
    began = datetime.now(UTC)
    inputs = inputs_of(case)
    # Misspelt words first: a folder that is in the way can be emptied, and then those would be in the way.
    check_words(case)
    folder = None if case.out is None else Folder(case.out, resume, case.private_days)
    if folder is not None:
        folder.check(inputs)
    looks = {name: Look.at(path) for name, path in inputs.items()}
    # What objects hold is known only when they were read; a case of files is recognised before.
    if folder is not None and resume and not case.objects and folder.receipt.is_file():
        found = folder.finished(request_of(case, looks))
        # Killed between the receipt and the end, a run leaves its last temporary name behind.
        folder.sweep()
        if found is not None:
            return _served_before(case, folder, found)
    lineages = [] if case.statistics is None and case.fold_models is None else files_used(case)
    lineages += [] if case.training is None else lineages_of(case)
    plan = plan_of(case)
    plan = replace(plan, audit=() if audit is None else tuple(audit_plan(plan, audit)))
    for name, look in looks.items():
        look.check_unchanged(as_flag(name))
    for line in plan.lines():
        say(line)
    request = request_of(case, looks, plan)
    if folder is None:
        with plan.within_memory(), _objects_held(case):
            return _forget(Unwritten.new(case.private_days), plan, request, looks, began, audit, say)
    with plan.within_memory(), folder.claimed():
        # Another run may have finished between the look above and the claim.
        if found := folder.finished(request):
            return _served_before(case, folder, found)
        folder.private.keep_request(request)
        with ExitStack() as held:
            held.enter_context(_objects_held(case))
            for lineage in lineages:
                held.enter_context(lineage.used_by(folder.path))
            return _forget(folder, plan, request, looks, began, audit, say)


def _objects_held(case: Case) -> ExitStack:
    """Statistics and fold models that were given as objects, held for this one request."""
    with ExitStack() as held:
        for kept, what in ((case.statistics, "statistics"), (case.fold_models, "fold models")):
            if kept is not None and not isinstance(kept, Path):
                held.enter_context(used_once(kept, what))
        return held.pop_all()


def _served_before(case: Case, folder: Folder, receipt: dict[str, Any]) -> Unlearned:
    def load_model() -> nn.Module:
        return following(load_into(network_of(case), read_weights(folder.path / SCRUBBED)).eval())

    exact = folder.private.diagnostics()
    return Unlearned(receipt, load_model, folder=folder.path, salt=folder.salt, again=True, exact=exact)


def _forget(
    place: Folder | Unwritten,
    plan: Plan,
    request: Mapping[str, Any],
    looks: Mapping[str, Look],
    began: datetime,
    audit: Audit | None,
    say: Callable[[str], None],
) -> Unlearned:
    """The work itself, and its receipt; into a folder where there is one."""
    opened, case = plan.opened, plan.opened.case
    folder = place if isinstance(place, Folder) else None
    known = {"identity": place.identity(request), "inputs": described_inputs(opened, looks, place.salt), "began": began}
    with Meter(opened.trained.device) as meter:
        gaussian = plan.scrub(opened.trained, opened.split)
    if gaussian.diagnostics.retrain_now:
        _refuse(place, plan, known, gaussian)
    noise, weights = _drawn(case, gaussian)
    _check_changed(opened, weights, gaussian)
    after = drawn_network(opened.trained, gaussian, weights, opened.split.kept)
    utility = measured_utility(opened, after, plan.scrub)
    gone = GoneRows.of(opened.split.forget, opened.split.retain, place.salt)
    model = following(after.module(), gone)
    subjects = {SCRUBBED: _keep_network(folder, model)}
    if folder is not None and case.weights is not None and case.weights.is_dir() and is_pretrained(case.weights, model):
        subjects[PRETRAINED] = save_anew(model, folder.path / PRETRAINED)
    statistics = _for_next_request(opened, after, _due(place))
    if folder is not None and statistics is not None:
        subjects[STATISTICS] = write_statistics(folder.path / STATISTICS, statistics, replace=folder.again)
    if folder is not None and (opened.statistics or opened.fold_models):
        keep_effect(folder.private, opened, after, statistics)
    if folder is not None and case.training is not None:
        subjects |= keep_record(folder, opened, {SCRUBBED: subjects[SCRUBBED]})
    if folder is not None and audit is not None and audit.keep_trainings is not None:
        folder.private.keep_trainings(Path(audit.keep_trainings))
    report = None if audit is None else with_header(audited(plan, after, audit, say), known, subjects)
    if folder is not None and audit is not None and report is not None:
        note_bank(folder, audit, report, follows=True)
        subjects |= write_report(folder.path, report, replace=folder.again)
    limits = limits_of(opened, gaussian, report, unchanged=is_unchanged(opened, weights, gaussian))
    limits += [] if utility["within_limit"] else [ACCEPTED]
    measured = {**gaussian.diagnostics, "seconds": meter.seconds, "utility": utility, "limits": limits}
    exact = plain(measured if report is None else {**measured, "audit": report.figures()})
    receipt = _receipt(
        place,
        plan,
        known,
        subjects=subjects,
        noise=NO_NOISE if noise is None else noise.record(),
        diagnostics=exact,
        audit=[] if report is None else report.record(),
        limits=limits,
    )
    if folder is not None:
        folder.private.keep_diagnostics(exact)
        folder.private.keep_rows(gone, case.weights)
        write_receipt(folder.receipt, receipt, replace=folder.again)
    out = None if folder is None else folder.path
    return Unlearned(receipt, lambda: model, plan, report, statistics, out, place.salt, exact=exact)


NO_NOISE = {"kind": "none", "consequence": "the method adds no noise, so no bound in nats holds"}
"""What the receipt says of a method without noise: no seed is made, for nothing is drawn."""


def _drawn(case: Case, gaussian: Gaussian) -> tuple[NoiseSeed | None, Float[Tensor, " P"]]:
    """The weights to hand out, and the seed of their noise where there is any."""
    noise = _noise_seed(case, gaussian)
    weights = gaussian.mean if noise is None else gaussian.draw(noise.generator())
    if not bool(weights.isfinite().all()):
        raise NumericsError("The scrubbed weights are not finite, so nothing was written. Lower the noise or the step.")
    return noise, weights


def _noise_seed(case: Case, gaussian: Gaussian) -> NoiseSeed | None:
    if gaussian.is_noiseless:
        return None
    return NoiseSeed.secret() if case.seed is None else NoiseSeed.for_experiments(case.seed)


def _keep_network(folder: Folder | None, model: nn.Module) -> str:
    """The SHA-256 of the network's file, which is written where there is a folder for it."""
    if folder is None:
        return hashlib.sha256(weights_as_bytes(model)).hexdigest()
    return write_weights(folder.path / SCRUBBED, model, replace=folder.again)


def _for_next_request(opened: LoadedRequest, after: Trained, due: datetime) -> Statistics | None:
    """Statistics that the next request finds beside the new network, where this one was served from such.

    There are no such fold models: most of those given were trained on the rows, and would bring them back.
    """
    if opened.statistics is None or not opened.may_write_statistics:
        return None
    old, seed, split = opened.statistics, opened.case.seed, opened.split
    # Secret unless everything must come out the same again.
    salt = None if seed is None else next_salt(old.keys.salt, seed)
    return after_request(
        old, opened.trained, split.forget, after.weights, retain=split.retain, salt=salt, due=due.isoformat()
    )


def _due(place: Folder | Unwritten) -> datetime:
    """When the private material of the request must be destroyed."""
    return place.private.destroy_after if isinstance(place, Folder) else place.destroy_after


def _receipt(place: Folder | Unwritten, plan: Plan, known: Mapping[str, Any], **told: Any) -> dict[str, Any]:
    """The receipt of a request, served or refused."""
    opened, split = plan.opened, plan.opened.split
    name, settings = described(plan.scrub)
    return statement(
        inputs=known["inputs"],
        request={
            "identity": known["identity"],
            "cohort": committed(opened.ids, place.salt),
            "matched": split.request.matched,
            "missing": split.request.missing,
            "duplicates": split.request.duplicates,
            "kept": len(split.retain),
            "copies": split.request.copies,
        },
        method=name,
        settings=settings,
        private={"destroy_after": _due(place).isoformat(), "by": "spotless purge"},
        salt=place.salt,
        began=known["began"],
        **told,
    )


def is_unchanged(opened: LoadedRequest, weights: Float[Tensor, " P"], gaussian: Gaussian) -> bool:
    """Whether a result is the original, bit for bit, buffers included."""
    had = opened.trained.model.named_buffers()
    moved = gaussian.buffers is not None and not all(torch.equal(b, gaussian.buffers[n].to(b)) for n, b in had)
    return torch.equal(weights, opened.trained.weights) and not moved


def _check_changed(opened: LoadedRequest, weights: Float[Tensor, " P"], gaussian: Gaussian) -> None:
    """Refuse a receipt for nothing: a network that comes back bit for bit still knows what it knew."""
    if is_unchanged(opened, weights, gaussian) and not opened.case.accept_damage:
        raise DamageError(
            "Nothing was changed: every weight came back bit for bit, so nothing was forgotten, and nothing was "
            "written. Take another method or stronger settings; --accept-damage insists (in Python "
            "`accept_damage=True`)."
        )


def measured_utility(opened: LoadedRequest, after: Trained, scrub: Scrub | None = None) -> dict[str, Any]:
    """What the request cost on rows that stay, for the receipt; a ruined network is refused unless accepted."""
    case = opened.case
    # Whoever allows noise to cost more has said how much more may be lost.
    limit = max(case.max_damage or MOST, case.max_error_increase or 0.0)
    if case.accept_damage:
        found = utility_of(opened.trained, after, opened.split)
    else:
        found = check_damage(opened.trained, after, opened.split, limit, scrub=scrub)
    told = {"within_limit": all(one.share <= limit for one in found), "accepted_any": bool(case.accept_damage)}
    return {"measured": [one.record() for one in found], "limit": limit, **told}


def _refuse(place: Folder | Unwritten, plan: Plan, known: Mapping[str, Any], gaussian: Gaussian) -> NoReturn:
    """Say why nothing was forgotten, for the records where there is a folder, and end."""
    why = "; ".join(dict.fromkeys(gaussian.diagnostics.assumed))
    records = "."
    if isinstance(place, Folder):
        limits = ["Refused: nothing was forgotten, and no network was written. Retrain without the rows."]
        about, noise = {**gaussian.diagnostics, "refused": why}, {"kind": "none", "consequence": "nothing was drawn"}
        told = _receipt(place, plan, known, subjects={}, noise=noise, diagnostics=about, limits=limits)
        place.private.keep_diagnostics(about, REFUSAL)
        write_receipt(place.path / REFUSAL, told, replace=True)
        records = f"; {place.path / REFUSAL} says it for your records."
    raise WornError(
        f"What was kept for requests no longer serves: {why}. Nothing was forgotten. Retrain without these rows, then "
        f"write new statistics or train new fold models{records}"
    )
