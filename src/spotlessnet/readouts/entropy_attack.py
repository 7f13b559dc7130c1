"""Entropy attack: does a classifier that knows members by their entropy take forgotten rows for members?

Golatkar, Achille and Soatto (2020): logistic regression in *Eternal Sunshine of the Spotless Net*, a support vector
machine in *Forgetting Outside the Box*.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError, check_choice, check_positive
from spotlessnet.core.intervals import Array, clopper_pearson, t_interval
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.entropy import entropies


@READOUTS.register(
    "entropy-attack",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: section 5",
    needs=("retained data", "test data"),
)
@dataclass(frozen=True)
class EntropyAttack(Readout):
    """Share of $D_f$ that an attacker takes for training rows, judging by the entropy of the answers.

    The attacker learns to tell retained rows (members) from test rows. What a retrained network gives is the target,
    not one half: the attacker knows nothing of labels. The limits are exact for the number of forgotten rows.

    **Arguments:**

    - `kind`: logistic regression, or a support vector machine with an RBF kernel (`C=3, gamma="auto"`).
    - `balanced`: as many members as test rows, and entropies by their rank, since most lie close to zero. Otherwise
      the papers' own form: all rows and raw entropies, where the more numerous side wins by prior.
    - `most`: the most rows of each side that the balanced attacker learns from.
    - `score`: `"share"` counts the rows that the attacker takes for members; `"probability"` is the mean of how likely
      it thinks that, which is what *Eternal Sunshine* published. Logistic regression only.
    - `seed`: of the draw that balances.
    """

    unit: ClassVar[str] = "share of rows"
    ideal: ClassVar[Ideal] = "as retrained"

    kind: Literal["logistic", "svc"] = "logistic"
    balanced: bool = True
    most: int = 2000
    score: Literal["share", "probability"] = "share"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("EntropyAttack.kind", self.kind, ("logistic", "svc"))
        check_positive("EntropyAttack.most", self.most)
        check_choice("EntropyAttack.score", self.score, ("share", "probability"))
        if self.score == "probability" and self.kind != "logistic":
            raise SettingError(
                '`EntropyAttack(score="probability")` needs an attacker with probabilities, `kind="logistic"`, but the '
                f"kind is {self.kind!r}."
            )

    @property
    def name(self) -> str:
        told = f"entropy attack, {self.kind}{'' if self.balanced else ', as published'}"
        return told if self.score == "share" else f"{told}, mean probability"

    def __call__(self, network: Trained, split: Split) -> Reading:
        members, others = _feature(network, split.retain), _feature(network, split.tests)
        if self.balanced:
            generator = np.random.default_rng(self.seed)
            size = min(len(members), len(others), self.most)
            members = members[generator.permutation(len(members))[:size]]
            others = others[generator.permutation(len(others))[:size]]
        attacker = self._attacker(len(members) + len(others))
        attacker.fit(np.concatenate([members, others]), np.repeat([1, 0], [len(members), len(others)]))
        if self.score == "probability":
            likely = attacker.predict_proba(_feature(network, split.forget))[:, 1]
            return Reading(*t_interval(likely.tolist())) if len(likely) > 1 else Reading(float(likely.mean()))
        taken = attacker.predict(_feature(network, split.forget))
        return Reading(*clopper_pearson(int(taken.sum()), len(taken)))

    def _attacker(self, rows: int) -> Any:
        # Imported here: every other readout works where scikit-learn is missing.
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import QuantileTransformer
        from sklearn.svm import SVC

        judge = LogisticRegression() if self.kind == "logistic" else SVC(C=3, gamma="auto", kernel="rbf")
        if not self.balanced:
            return judge
        ranks = QuantileTransformer(n_quantiles=min(1000, rows), output_distribution="normal", subsample=None)
        return make_pipeline(ranks, judge)


def _feature(network: Trained, data: Data) -> Array:
    return entropies(network, data).cpu().numpy().reshape(-1, 1)
