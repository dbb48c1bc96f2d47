"""The spam-detection service: an ASGI application, its keys, limits and metrics."""
