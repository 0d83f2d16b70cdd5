"""Yardsticks: rules that everybody knows, fitted on the same record and the same grid of tiers as our own policies.

Each has a file of its own with its source. They are fitted on the tuning prompts; the prompts that results are
reported on take no part in any choice.
"""
