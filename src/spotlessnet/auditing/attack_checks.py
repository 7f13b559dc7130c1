"""An attack on scrubbed networks as checks of the verdict: its area, and how many rows it is sure of."""

from dataclasses import replace

from spotlessnet.auditing.verdict import ATTACK, FOUND, Check, State
from spotlessnet.readouts.attack import Attack

MAY = 0.05
"""The share of rows that an attacker may find at few false alarms: an area of .55 hides one exposed row in ten."""


def checks_of_attack(attack: Attack) -> list[Check]:
    """The area under the curve, and the true positive rates at 0.1 % and 1 % false ones that the sample resolves.

    A rate differs where its lower limit lies above that of guessing, and is as retrained only where its upper limit
    stays below `MAY`. What the sample does not resolve is said in the note of the area.
    """
    return [replace(attack_check(attack), note=attack.note), *_found(attack)]


def attack_check(attack: Attack, *, limit: float = 0.55) -> Check:
    """An attack on the scrubbed networks as one more check: its area under the curve must surely stay below a limit.

    Only areas above one half speak of memory; an interval that holds one half but exceeds the limit is unclear.
    """
    value, low, high = attack.auc
    state: State = "unclear"
    if high <= limit:
        state = "same"
    elif low > 0.5:
        state = "different"
    return Check(ATTACK, state, value, low, high, limit)


def _found(attack: Attack) -> list[Check]:
    checks = []
    for rate, name in FOUND.items():
        if rate not in attack.tprs:
            continue
        value, low, high = attack.tprs[rate]
        state: State = "different" if low > rate else "unclear"
        if high <= MAY:
            state = "same"
        checks.append(Check(name, state, value, low, high, MAY))
    return checks
