"""Asks the gateway: for protected calls, LLM requests and tools, once a lease does not suffice."""
