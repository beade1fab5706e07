"""Tables, figures and pages made from the bench's rows: rows -> one DataFrame -> tables and figures -> files."""

from __future__ import annotations

from bgmiv.bench.report.results import Report, bench_report, report_files

__all__ = ["Report", "bench_report", "report_files"]
