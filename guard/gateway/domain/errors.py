"""Exceptions of a storage and of the ledger's rules."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot answer now: closed, out of space, damaged, or not reachable."""


class StoreFullError(StoreError):
    """The store has no space left; nothing can be written until there is some."""


class UnstorableError(StoreError):
    """The store works and refuses what it was given; a repeat would be refused as well."""


class StoreBusyError(StoreError):
    """Another program is writing to the store's file; nothing was begun."""


class StoreLostError(StoreError):
    """The store cannot be reached; whether the last commit happened is not known."""


class NotFoundError(Exception):
    """There is no such thing in this organisation."""


class ConflictError(Exception):
    """The change contradicts what is stored."""
