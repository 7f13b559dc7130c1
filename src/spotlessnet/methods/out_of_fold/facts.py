"""What out-of-fold distillation measures on the way."""

from dataclasses import dataclass

from spotlessnet.core.gaussian import Measured


@dataclass(frozen=True)
class DistillationFacts(Measured):
    """What was visited, how the answers were made, and how far retained rows have moved."""

    rounds: int | None = None
    rows_in_a_round: int | None = None
    cost_in_trainings: float | None = None
    bias_lowered_by: float | None = None
    forget_weight: float | None = None
    temperature: float | None = None
    label_boost: float | None = None
    retain_temperature: float | None = None
    targets: str | None = None
    lr_scale: float | None = None
    momentum: float | None = None
    forgotten_read: int | None = None
    retained_read: int | None = None
    visits: int | None = None
    step_scale: float | None = None
    lr: float | None = None
    parts_taken_back: int | None = None
    own_kept: float | None = None
    own_noise: float | None = None
    fold_models_unseen: int | None = None
    drift: float | None = None
    drift_unit: str | None = None
    drift_share: float | None = None
    others_moved: float | None = None
    retrain_now: bool | None = None
    struck_out: int | None = None
    match_held_out_confidence: int | None = None
    known_at_the_start: float | None = None
