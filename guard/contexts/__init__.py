"""The context managers that :mod:`guard.context` publishes."""
