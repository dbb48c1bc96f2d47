"""Delivers events to the gateway: flush, spool, loss accounting."""
