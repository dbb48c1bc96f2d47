"""Whole files of texts: reading them, storing the verdicts, resuming after an interruption."""
