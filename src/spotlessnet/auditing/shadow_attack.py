"""U-LiRA: LiRA against a scrub, with shadows that were themselves scrubbed.

Hayes, Shumailov, Triantafillou, Khalifa and Papernot (2024), *Inexact Unlearning Needs More Careful Evaluations to
Avoid a False Sense of Privacy*.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from spotlessnet.auditing.shadows import Shadows, train_shadows
from spotlessnet.core.errors import check_choice
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, as_split
from spotlessnet.core.trained import Trained, as_trained
from spotlessnet.readouts.attack import Attack, attack_over_models
from spotlessnet.readouts.lira import Spread, held_out_scores
from spotlessnet.readouts.scores import scores_of
from spotlessnet.training.many import Executor

Out = Literal["scrubbed", "retrained"]


@dataclass(frozen=True)
class ULiRA:
    """What is left to find after a scrub.

    **Arguments:**

    - `forgotten`: rows trained on and then scrubbed, against rows never trained on; 0.5 is forgotten.
    - `population`: the same rows with one threshold for all of them, which understates what leaks.
    - `retained`: rows trained on and kept, against rows never trained on. The target is not 0.5 but `retained_before`:
      a scrub may make others easier to find.
    - `retained_before`: the same before the scrub.
    """

    forgotten: Attack
    population: Attack
    retained: Attack | None = None
    retained_before: Attack | None = None

    def __str__(self) -> str:
        lines = [f"forgotten rows: {self.forgotten}", f"one threshold:  {self.population}"]
        if self.retained is not None:
            lines.append(f"retained rows:  {self.retained}")
            lines.append(f"before scrub:   {self.retained_before}")
        return "\n".join(lines)


def u_lira(
    trained: Trained | nn.Module,
    split: Split,
    scrub: Scrub,
    *,
    shadows: int = 64,
    recipe: Recipe | None = None,
    bystanders: bool = True,
    spread: Spread = "student",
    seed: int = 0,
    executor: Executor | None = None,
    out: Out = "scrubbed",
) -> ULiRA:
    """Audit a scrub on a request: train shadows on random halves of $D_f$, scrub each one, and attack them.

    It judges the method with these settings on these rows, not one network.

    **Arguments:**

    - `trained`: the network; shadows begin where its training began.
    - `scrub`: the method under test, with the same settings for every shadow and draws of its own.
    - `shadows`: how many, a multiple of four; 64 is the default budget, 256 what papers use.
    - `bystanders`: also watch as many retained rows as there are forgotten ones.
    - `spread`: how the variance of a row's margins is found; see `lira_scores`.
    - `executor`: how shadows are trained, in turn unless said; see `Executor`.
    - `out`: what the networks are that never saw a row: shadows that were scrubbed of other rows, as published, so that
      what the scrub does to every row is no evidence; or `"retrained"`: networks trained plainly without the targets,
      at the price of as many trainings again. A scrub that trains differently is then told from retraining too.
    """
    trained, split = as_trained(trained), as_split(split)
    check_choice("out", out, ("scrubbed", "retrained"))
    targets = split.forgotten.nonzero().squeeze(1)
    watched = _some(split, len(targets), seed) if bystanders else None
    trained_shadows = train_shadows(
        trained,
        split.whole,
        targets,
        bystanders=watched,
        recipe=recipe,
        shadows=shadows,
        seed=seed,
        validation=split.validation,
        executor=executor,
    )
    outside = trained_shadows.retrained(executor) if out == "retrained" else None
    return attack_shadows(trained_shadows, trained_shadows.scrubbed(scrub), outside=outside, spread=spread)


def attack_shadows(
    shadows: Shadows,
    networks: Float[Tensor, "S P"] | Sequence[Trained] | None = None,
    *,
    outside: Sequence[Trained] | None = None,
    spread: Spread = "student",
    prior: float = 4.0,
) -> ULiRA:
    """Attack shadows after they were changed: `shadows.scrubbed(...)`, `shadows.retrained()` or any other.

    **Arguments:**

    - `networks`: one per shadow, or a line of weights for each; the shadows as they were trained unless given.
    - `outside`: networks that take the places of those that never saw a row, such as `shadows.retrained()`.
    """

    def of(
        rows: Int64[Tensor, " T"], at: Float[Tensor, "S P"] | Sequence[Trained] | None, *, per_row: bool = True
    ) -> Attack:
        phi = scores_of(shadows.networks(at), shadows.data.select(rows))
        member = shadows.seen[:, rows]
        if outside is not None and at is networks:
            phi = torch.where(member, phi, scores_of(outside, shadows.data.select(rows)))
        scores = held_out_scores(phi, member, spread=spread, prior=prior) if per_row else phi
        return attack_over_models(scores, member, together=2, crossed=per_row, seed=shadows.seed)

    watch = len(shadows.bystanders) > 1
    return ULiRA(
        forgotten=of(shadows.targets, networks),
        population=of(shadows.targets, networks, per_row=False),
        retained=of(shadows.bystanders, networks) if watch else None,
        retained_before=of(shadows.bystanders, None) if watch else None,
    )


def _some(split: Split, count: int, seed: int) -> Int64[Tensor, " B"]:
    """Retained rows to watch, at most half of them, so that shadows have enough left to learn from."""
    kept = (~split.forgotten).nonzero().squeeze(1)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(seed))
    return kept[order[: min(count, len(kept) // 2)]].sort().values
