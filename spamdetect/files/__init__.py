"""Whole files of texts: reading them, keeping the verdicts, going on after an interruption."""
