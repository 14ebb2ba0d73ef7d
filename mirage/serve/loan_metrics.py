"""Loans between tenants as Prometheus metrics; both names are * for those beyond the first 500."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from mirage.control.loan_sums import LoanSums, Pair

COUNTERS = {
    "lent_s": ("mirage_loan_seconds", "Time for which memory was lent"),
    "byte_s": ("mirage_loan_byte_seconds", "Bytes that were lent, times seconds"),
    "wait_s": ("mirage_loan_wait_seconds", "Time that the lender's steps waited for it"),
    "token_s": ("mirage_loan_token_seconds", "Time that was added to the lender's tokens"),
    "tokens": ("mirage_loan_tokens", "Tokens that the lender decoded meanwhile"),
    "requests": ("mirage_loan_requests", "Requests of the lender that ran meanwhile"),
    "preemptions": (
        "mirage_loan_preemptions_saved",
        "Preemptions that the borrower was saved, estimated",
    ),
    "waits": ("mirage_loan_waits_saved", "Requests of the borrower that began, estimated"),
    "request_s": ("mirage_loan_request_seconds", "Of the borrower on this memory, estimated"),
}


def loan_metrics(loans: Mapping[Pair, LoanSums]) -> Iterator[Metric]:
    """A counter for each of the sums, by lender and borrower."""
    for field, (name, text) in COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=["lender", "borrower"])
        for pair, sums in loans.items():
            family.add_metric(pair, float(getattr(sums, field)))
        yield family
