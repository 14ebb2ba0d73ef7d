"""Metrics of loans between tenants; beyond the first 500 pairs both names are ``*``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from mirage.control.loan_sums import LoanSums, Pair

COUNTERS = {
    "lent_s": ("mirage_loan_seconds", "Time for which memory was lent"),
    "byte_s": ("mirage_loan_byte_seconds", "Bytes lent, times seconds"),
    "wait_s": ("mirage_loan_wait_seconds", "Time that steps of the lender waited for lent layers"),
    "token_s": ("mirage_loan_token_seconds", "Time that lending added to tokens of the lender"),
    "tokens": ("mirage_loan_tokens", "Tokens that the lender decoded during loans"),
    "requests": ("mirage_loan_requests", "Requests of the lender that ran during loans"),
    "preemptions": (
        "mirage_loan_preemptions_saved",
        "Preemptions of the borrower that loans avoided, estimated",
    ),
    "waits": (
        "mirage_loan_waits_saved",
        "Waits of the borrower's requests that loans avoided, estimated",
    ),
    "request_s": (
        "mirage_loan_request_seconds",
        "Time of the borrower's requests on lent memory, estimated",
    ),
}


def loan_metrics(loans: Mapping[Pair, LoanSums]) -> Iterator[Metric]:
    """A counter for each sum, with rows by lender and borrower."""
    for field, (name, text) in COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=["lender", "borrower"])
        for pair, sums in loans.items():
            family.add_metric(pair, float(getattr(sums, field)))
        yield family
