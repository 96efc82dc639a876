# SPDX-License-Identifier: Apache-2.0
"""A second implementation of spec/kv-state.md, written from its text alone; it shares no code with the first.

It reads canonical texts and layout notation, computes where every element lies, digests, verdicts and chunks.
It is slow and short on purpose. Tests compare it with the golden vectors, which the first one checks too.
"""
