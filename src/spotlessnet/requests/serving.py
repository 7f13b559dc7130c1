"""One request from the asking to the receipt: the only place where `spotless scrub` writes."""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jaxtyping import Float
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.core.damage import MOST, check_damage, utility_of
from spotlessnet.core.errors import NumericsError, WornError
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.meter import Meter
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Request
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.fold_model_files import write_fold_models
from spotlessnet.precomputed.statistics_files import write_statistics
from spotlessnet.requests.case import Case
from spotlessnet.requests.estimate import Estimate, estimate
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.inputs import Look, check_unchanged, inputs_of, keyed, looks_at
from spotlessnet.requests.lineage import Lineage
from spotlessnet.requests.loading import LoadedRequest, open_case
from spotlessnet.requests.methods import described, scrub_of, usual
from spotlessnet.store.checkpoints import write_weights
from spotlessnet.store.receipts import COMMITMENT, NoiseSeed, commit_to, plain, statement, write_receipt

SCRUBBED, STATISTICS, REFUSAL = "scrubbed.safetensors", "statistics.safetensors", "refusal.json"
VERDICT, FOLD_MODELS = "verdict.json", "fold-models.safetensors"
REPORT = ("report.html", "rows.jsonl", "rows.csv", "model-card.md", VERDICT)
"""The files that an audit writes; a receipt with a verdict binds them all."""


@dataclass(frozen=True, eq=False)
class Result:
    """What came of a request.

    **Arguments:**

    - `again`: the request had been served before, and this is that receipt.
    """

    folder: Path
    receipt: dict[str, Any]
    again: bool = False
    report: AuditReport | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """A request that was checked and not yet begun."""

    opened: LoadedRequest
    scrub: Scrub
    cost: Estimate

    def lines(self) -> list[str]:
        """For people."""
        split, (name, settings) = self.opened.split, described(self.scrub)
        budget = settings.pop("budget", None)
        changed = {link: {k: v for k, v in own.items() if v != usual(link)[k]} for link, own in settings.items()}
        rows = f"{len(split.retain)} rows stay, {len(split.forget)} go"
        return [
            f"forget  {split.request}; {rows}",
            *([f"copies  {copies_in_words(split.request)}"] if split.request.copies else []),
            f"method  {name}" + (f" with noise for {budget}" if budget else ""),
            *(
                f"        {link}: {', '.join(f'{k}={v}' for k, v in own.items())}"
                for link, own in changed.items()
                if own
            ),
            *self.cost.lines(),
            "noise   "
            + ("from the seed given: for experiments only" if self.opened.case.seed is not None else "secret"),
        ]


Auditor = Callable[[Plan, Trained], AuditReport]


def plan_of(case: Case) -> Plan:
    """Everything short of the work: imports, checks, estimate, and the refusal of what would not fit."""
    scrub_of(case)  # a misspelt setting should not cost the reading of the data
    opened = open_case(case)
    scrub = scrub_of(case, opened.statistics, opened.reference, opened.fold_models)
    scrub.check_enough_is_kept(opened.split)
    cost = estimate(opened.trained, opened.split, scrub, case.memory_limit)
    cost.check_memory()
    return Plan(opened, scrub, cost)


def copies_in_words(request: Request) -> str:
    """What copies among the kept rows mean for a request."""
    count = request.copies or 0
    rows = "1 kept row has" if count == 1 else f"{count} kept rows have"
    return f"{rows} the very inputs of a forgotten row: what such copies taught the network stays"


def request_of(case: Case, looks: Mapping[str, Look]) -> dict[str, Any]:
    """All that decides the result of a request; the same values are the same request."""
    left_out = ("out", "memory_limit", "device", "keep_private", "max_damage", "accept_damage")
    told = {name: value for name, value in case.given().items() if name not in left_out}
    return plain({"fields": told, "digests": {name: look.digests for name, look in looks.items()}})


def serve(case: Case, say: Callable[[str], None], *, resume: bool, audit: Auditor | None = None) -> Result:
    """Forget what a case asks for, and write the network and its receipt; the receipt comes last.

    **Arguments:**

    - `resume`: go on where an earlier run of the same request stopped; a finished one is given back as it is.
    - `audit`: a function of the plan and the scrubbed network that gives the `AuditReport` to write beside it, or
      `None`.
    """
    case.need("out", "model", "weights", "data", "forget")
    assert case.out is not None
    folder, began = Folder(case.out, resume, case.private_days), datetime.now(UTC)
    folder.check(inputs_of(case))
    looks = looks_at(inputs_of(case))
    request = request_of(case, looks)
    if resume and folder.receipt.is_file() and (found := folder.finished(request)):
        # Killed between the receipt and the end, a run leaves its last temporary name behind.
        folder.sweep()
        return Result(folder.path, found, again=True)
    lineage = None if case.statistics is None else Lineage(case.statistics)
    if lineage is not None:
        lineage.check_free(case.out)  # before the data are read
    plan = plan_of(case)
    check_unchanged(looks)
    for line in plan.lines():
        say(line)
    with folder.claimed():
        # Another run may have finished between the look above and the claim.
        if found := folder.finished(request):
            return Result(folder.path, found, again=True)
        folder.private.keep_request(request)
        binding = {"identity": folder.identity(request), "inputs": _inputs(looks, plan.opened, folder.salt)}
        with nullcontext() if lineage is None else lineage.used_by(case.out):
            return _write(folder, plan, binding, began, audit)


def _inputs(looks: Mapping[str, Look], opened: LoadedRequest, salt: bytes) -> dict[str, dict[str, Any]]:
    """What the receipt says of everything that was read: files by their digests, rows by what the loader gave."""
    # A digest of the list itself would let anyone test a guess; the commitment to its ids is salted.
    found = {name: look.record(name, salt) for name, look in looks.items() if name != "forget"}
    for name, held in opened.contents.items():
        rows = {"count": held.count, "commitment": keyed(salt, "rows", held.sha256)}
        found[name] = {**found.get(name, {}), "rows": rows}
    return found


def _write(folder: Folder, plan: Plan, binding: dict[str, Any], began: datetime, audit: Auditor | None) -> Result:
    opened, case, split = plan.opened, plan.opened.case, plan.opened.split
    with Meter(opened.trained.device) as meter:
        gaussian = plan.scrub(opened.trained, split)
    if gaussian.diagnostics.get("retrain_now"):
        _refuse(folder, plan, binding, began, gaussian)
    noise = NoiseSeed.secret() if case.seed is None else NoiseSeed.for_experiments(case.seed)
    weights = gaussian.draw(noise.generator())
    if not bool(weights.isfinite().all()):
        raise NumericsError("The scrubbed weights are not finite, so nothing was written. Lower the noise or the step.")
    utility = measured_utility(opened, weights)
    written = write_weights(folder.path / SCRUBBED, opened.trained.module(weights), replace=folder.again)
    subjects = {SCRUBBED: written}
    if opened.statistics is not None and opened.may_write_statistics:
        subjects[STATISTICS] = _write_statistics(folder, opened, weights)
    if opened.fold_models is not None:
        left = opened.fold_models.without(split.forget)
        subjects[FOLD_MODELS] = write_fold_models(folder.path / FOLD_MODELS, left, replace=folder.again)
    report = None if audit is None else audit(plan, opened.trained.at(weights))
    if report is not None:
        subjects |= write_report(folder.path, report, replace=folder.again)
    receipt = _receipt(
        folder,
        plan,
        binding,
        subjects=subjects,
        noise=_noise(noise, gaussian),
        diagnostics={**gaussian.diagnostics, "seconds": meter.seconds, "utility": utility},
        audit=[] if report is None else _figures(report),
        limits=limits_of(opened, gaussian, report),
        began=began,
    )
    write_receipt(folder.receipt, receipt, replace=folder.again)
    return Result(folder.path, receipt, report=report)


def _receipt(folder: Folder, plan: Plan, binding: dict[str, Any], **known: Any) -> dict[str, Any]:
    """The receipt of a request, served or refused."""
    opened, split, (name, settings) = plan.opened, plan.opened.split, described(plan.scrub)
    return statement(
        inputs=binding["inputs"],
        request={
            "identity": binding["identity"],
            "cohort": {"commitment": commit_to(opened.ids, folder.salt), "algorithm": COMMITMENT},
            "matched": split.request.matched,
            "missing": split.request.missing,
            "duplicates": split.request.duplicates,
            "kept": len(split.retain),
            "copies": split.request.copies,
        },
        method=name,
        settings=settings,
        private={"destroy_after": folder.private.destroy_after.isoformat(), "by": "spotless purge"},
        salt=folder.salt,
        **known,
    )


def measured_utility(opened: LoadedRequest, weights: Float[Tensor, " P"]) -> dict[str, Any]:
    """What the request cost on rows that stay, for the receipt; a ruined network is refused unless accepted."""
    case, after = opened.case, opened.trained.at(weights)
    # Whoever allows noise to cost more has said how much more may be lost.
    limit = max(case.max_damage or MOST, case.max_error_increase or 0.0)
    if case.accept_damage:
        found = utility_of(opened.trained, after, opened.split)
    else:
        found = check_damage(opened.trained, after, opened.split, limit)
    return {"measured": [one.record() for one in found], "limit": limit, "accepted_any": bool(case.accept_damage)}


def _refuse(folder: Folder, plan: Plan, binding: dict[str, Any], began: datetime, gaussian: Gaussian) -> NoReturn:
    """Write down why nothing was forgotten, and end."""
    why = "; ".join(dict.fromkeys(gaussian.diagnostics.get("assumed", [])))
    limits = ["Refused: nothing was forgotten, and no network was written. Retrain without the rows."]
    about, noise = {**gaussian.diagnostics, "refused": why}, {"kind": "none", "consequence": "nothing was drawn"}
    told = _receipt(folder, plan, binding, subjects={}, noise=noise, diagnostics=about, limits=limits, began=began)
    write_receipt(folder.path / REFUSAL, told, replace=True)
    raise WornError(
        f"What was kept for requests no longer serves: {why}. Nothing was forgotten. Retrain without these rows, then "
        f"write a new memory or train new fold models; {folder.path / REFUSAL} says it for your records."
    )


def _write_statistics(folder: Folder, opened: LoadedRequest, weights: Float[Tensor, " P"]) -> str:
    """The memory that the next request finds, written with the network that it belongs to; its SHA-256."""
    assert opened.statistics is not None
    split = opened.split
    memory = after_request(opened.statistics, opened.trained, split.forget, weights, retain=split.retain)
    return write_statistics(folder.path / STATISTICS, memory, replace=folder.again)


def _noise(seed: NoiseSeed, gaussian: Gaussian) -> dict[str, Any]:
    if gaussian.is_noiseless:
        return {"kind": "none", "consequence": "the method adds no noise, so no bound in nats holds"}
    return seed.record()


def _figures(report: AuditReport) -> list[dict[str, Any]]:
    head: dict[str, Any] = {"verdict": report.outcome, "reason": report.reason}
    if report.verdict is not None:
        head["seeds"] = report.verdict.seeds
    return [head, *(check.record() for check in report.checks)]


def limits_of(opened: LoadedRequest, gaussian: Gaussian, report: AuditReport | None) -> list[str]:
    """What the receipt of this request cannot say."""
    limits = [f"Assumed: {text}." for text in dict.fromkeys(gaussian.diagnostics.get("assumed", []))]
    if any(isinstance(m, _NormBase) and m.track_running_stats for m in opened.trained.model.modules()):
        limits.append("BatchNorm's running statistics were gathered with the forgotten rows and are left as they were.")
    frozen = sum(p.numel() for p in opened.trained.model.parameters()) - opened.trained.size
    if frozen:
        limits.append(f"{frozen} frozen parameters were not changed; what they know of the rows stays.")
    limits.append("The optimiser's state, if kept, carries the forgotten rows too: discard it.")
    limits.append("The list of what to forget and the folder `private` name or betray the rows: keep or destroy them.")
    if opened.split.request.copies:
        limits.append(f"{copies_in_words(opened.split.request)}. Ask for them too.")
    if opened.statistics is not None:
        limits.append(
            "The network and the memory that were given to this request know the forgotten rows: destroy both. Whoever "
            "keeps them can read rows back from what changed."
        )
    if opened.statistics is not None and not opened.may_write_statistics:
        limits.append(opened.no_statistics)
    if opened.fold_models is not None:
        limits.append(
            "The file of the fold models holds the network from before all requests, and fold models that were "
            "trained on "
            "forgotten rows, each on a part of them: destroy it once a network was retrained, and guard it until then. "
            "Give the next request the fold models that lie beside the new network: they no longer know the rows of "
            "this one, so that none left in the data is taught again. "
            "A request from fold models may take back some of what an earlier one did; nothing here has looked for it."
        )
    if opened.case.seed is not None and not gaussian.is_noiseless:
        limits.append("The noise came from a published seed: anyone can take it away again.")
    if report is None:
        limits.append("No audit was run: how much was forgotten has not been measured.")
    else:
        limits.append("The audit is of the method on this request over several seeds, not of this one file.")
    return limits


def write_report(folder: Path, report: AuditReport, *, replace: bool) -> dict[str, str]:
    """The report for people, the rows and the verdict for programs, the section for a model card; their SHA-256."""
    from spotlessnet.core.files import write_whole
    from spotlessnet.report.exports import as_csv, as_json_lines, as_model_card
    from spotlessnet.report.page import page

    figures = json.dumps(plain(_figures(report)), indent=2, sort_keys=True, allow_nan=False) + "\n"
    texts = (page(report), as_json_lines(report.rows), as_csv(report.rows), as_model_card(report), figures)
    return {
        name: write_whole(folder / name, text.encode(), replace=replace)
        for name, text in zip(REPORT, texts, strict=True)
    }
