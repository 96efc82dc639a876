# SPDX-License-Identifier: Apache-2.0
"""The record of a case that was measured in turns with a peer: what bench/page.py reads."""

import statistics


def rounded(value):
    return None if value is None else float(f"{value:.6g}")


def record(bench, case, bar, own, peer, reference, not_run="", unit="GB/s", less_is_better=False):
    """Figures of both, and the ratio of their medians against `bar`; no figures where `not_run` says why."""
    ratio = None if not_run else statistics.median(own) / statistics.median(peer)
    is_held = None if not_run else ratio <= bar if less_is_better else ratio >= bar
    return {
        "bench": bench,
        "case": case,
        "value": rounded(None if not_run else statistics.median(own)),
        "unit": unit,
        "reference": f"not run: {not_run}" if not_run else reference,
        "reference_value": rounded(None if not_run else statistics.median(peer)),
        "ratio": rounded(ratio),
        "bar": f"{'<=' if less_is_better else '>='} {bar:g}",
        "ok": is_held,
        "runs": 0 if not_run else len(own),
        "min": rounded(None if not_run else min(own)),
        "max": rounded(None if not_run else max(own)),
    }
