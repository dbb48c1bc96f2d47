"""Adapters for agent frameworks, over the public functions: langgraph, agents, mcp.

None of them is imported by ``import guard``; each imports its framework.
"""
