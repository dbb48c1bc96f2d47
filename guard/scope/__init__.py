"""The scope of running code, in one context variable."""

from guard.scope.scope import Scope, current_scope

__all__ = ["Scope", "current_scope"]
