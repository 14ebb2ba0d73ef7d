"""Requests and tokens of each key, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

MOST_NAMES = 500
"""Most keys that have counts of their own."""
OTHERS = "(others)"
"""Name under which all further keys are counted; no key has this name."""

Labels = tuple[str, str, str]


class TokenKind(StrEnum):
    """Kinds of tokens that are counted."""

    PROMPT = "prompt"
    COMPLETION = "completion"
    ESTIMATED = "estimated"
    """Prompt and completion together, estimated for answers that tell no usage."""


class KeyMetrics(Collector):
    """Counts by key, model and a third label. Those of models that are gone are dropped."""

    def __init__(self, models: Callable[[], Collection[str]]) -> None:
        """`models` returns the names of models that requests may use now."""
        self._models = models
        self._names: set[str] = set()
        self._requests: Counter[Labels] = Counter()
        self._tokens: Counter[Labels] = Counter()

    def answered(self, key: str, model: str, status: int) -> None:
        """Count an answered request. `key` and `model` are names, empty if unknown; `status` is the
        HTTP status of the answer.
        """
        self._requests[self._name(key), model, str(status)] += 1

    def took(self, key: str, model: str, kind: TokenKind, tokens: int) -> None:
        """Count tokens of a request; for `key` and `model` see `answered`."""
        self._tokens[self._name(key), model, kind.value] += tokens

    def keep(self, names: Collection[str]) -> None:
        """Drop the counts of keys whose names are not among `names`."""
        self._names &= set(names)
        kept = {*self._names, "", OTHERS}
        for counts in (self._requests, self._tokens):
            for labels in [one for one in counts if one[0] not in kept]:
                del counts[labels]

    def collect(self) -> Iterator[Metric]:
        models = {*self._models(), ""}
        for name, text, third, counts in (
            ("requests", "Requests by key, model and HTTP status", "status", self._requests),
            ("tokens", "Tokens that requests of a key took", "kind", self._tokens),
        ):
            family = CounterMetricFamily(f"mirage_key_{name}", text, labels=["key", "model", third])
            for labels in [one for one in counts if one[1] not in models]:
                del counts[labels]
            for labels, count in counts.items():
                family.add_metric(labels, float(count))
            yield family

    def _name(self, key: str) -> str:
        if key and key not in self._names:
            if len(self._names) >= MOST_NAMES:
                return OTHERS
            self._names.add(key)
        return key
