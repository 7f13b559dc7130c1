"""An attack on scrubbed networks as checks of the verdict: its area, and how many rows it is sure of."""

from dataclasses import replace

from spotlessnet.auditing.equivalence import attack_check
from spotlessnet.auditing.verdict import FOUND, Check, State
from spotlessnet.readouts.attack import Attack

MAY = 0.05
"""The share of rows that an attacker may find at few false alarms: an area of .55 hides one exposed row in ten."""


def checks_of_attack(attack: Attack) -> list[Check]:
    """The area under the curve, and the true positive rates at 0.1 % and 1 % false ones that the sample resolves.

    A rate differs where its lower limit lies above that of guessing, and is as retrained only where its upper limit
    stays below `MAY`. What the sample does not resolve is said in the note of the area.
    """
    return [replace(attack_check(attack), note=attack.note), *_found(attack)]


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
