"""Recommended `replay.load`: a load at which memory is the limit and compute is not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from mirage.config import Policy

MOST_LOAD = 0.8
"""Part of the machine's capacity beyond which requests wait for compute, however much memory there
is.
"""


@dataclass(frozen=True)
class OfferedLoad:
    """Rates of requests as parts of the machine's capacity with ample KV memory."""

    computed_per_s: float
    """The capacity in requests a second, which is 1.0 of `replay.load`."""
    too_many: dict[str, float]
    """Part of the capacity from which on each policy misses the limits."""

    @property
    def recommended(self) -> float | None:
        """A `replay.load` that policy mirage can serve and pooled cannot.

        The geometric mean of the two policies' loads, at most `MOST_LOAD`; None if there is no such
        load.
        """
        least, most = self._between()
        middle = float(f"{min(sqrt(least * most), MOST_LOAD):.2g}")
        return middle if least < middle < most else None

    def parts(self) -> str:
        """One line with the load of each policy from which on too many requests miss the limits,
        as a part of the machine's capacity."""
        each = [f"{name} from {part:.2g} on" for name, part in self.too_many.items()]
        return (
            f"too many requests: {', '.join(each)}, as parts of the {self.computed_per_s:.3g} "
            "requests/s that the machine computes without a limit of KV memory"
        )

    def said(self) -> str:
        """One line with the recommended load and the reason for it, or the reason why there is
        none.
        """
        least, most = self._between()
        load = self.recommended
        if load is not None:
            return (
                f"recommended replay.load: {load:g}; {POOLED} has too many requests from "
                f"{least:.2g} on, {MIRAGE} from {most:.2g} on"
                + f" (at most {MOST_LOAD:g}, so that compute does not decide)"
                * (load == MOST_LOAD)
            )
        if least >= most:
            return f"no replay.load shows what lending layers brings: {MIRAGE} bears no more"
        return (
            f"no replay.load shows what lending layers brings: {POOLED} bears {least:.2g} of what "
            f"the machine computes, and beyond {MOST_LOAD:g} compute decides"
        )

    def _between(self) -> tuple[float, float]:
        return self.too_many[POOLED], self.too_many.get(MIRAGE, 0.0)


POOLED, MIRAGE = str(Policy.POOLED), str(Policy.MIRAGE)
