"""Tiny random models of today's families, one small file per group; see `FAMILIES`."""

from __future__ import annotations

from tests.zoo.companions import COMPANIONS
from tests.zoo.dense import DENSE
from tests.zoo.encoders import ENCODERS
from tests.zoo.experts import EXPERTS
from tests.zoo.family import Family
from tests.zoo.latent import LATENTS
from tests.zoo.making import make, make_all
from tests.zoo.pictures import PICTURES
from tests.zoo.quantised import QUANTISED
from tests.zoo.renamed import RENAMED
from tests.zoo.states import STATES
from tests.zoo.windows import WINDOWS

GROUPS: dict[str, tuple[Family, ...]] = {
    "full attention": DENSE + RENAMED,
    "windows": WINDOWS,
    "experts": EXPERTS,
    "latent attention": LATENTS,
    "state space and linear attention": STATES,
    "quantised": QUANTISED,
    "adapters and drafts": COMPANIONS,
    "pictures": PICTURES,
    "embedding and scoring": ENCODERS,
}
FAMILIES = {family.name: family for group in GROUPS.values() for family in group}

__all__ = ["FAMILIES", "GROUPS", "Family", "make", "make_all"]
