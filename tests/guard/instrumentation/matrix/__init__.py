"""Every way to make an LLM call with every client: one small function each."""
