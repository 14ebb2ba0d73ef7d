"""Lease and epoch of a device server."""

from __future__ import annotations

import pytest

from mirage.machines.seam import StaleEpoch
from mirage.machines.tenure import Tenure

pytestmark = pytest.mark.pure


def test_older_controllers_are_refused_and_the_lease_is_never_cut_short() -> None:
    tenure = Tenure(2, 10.0, now=0.0)
    with pytest.raises(StaleEpoch):
        tenure.obeys(1)
    tenure.obeys(2)
    tenure.obeys(4)
    with pytest.raises(StaleEpoch):
        tenure.obeys(3)
    tenure.renew(5.0, now=1.0)
    assert tenure.left_s(1.0) == 9.0
    tenure.renew(20.0, now=1.0)
    assert tenure.left_s(1.0) == 20.0
    assert tenure.left_s(30.0) == 0.0
