"""The operators' dashboard: server-rendered pages, a small script, live by server-sent events."""
