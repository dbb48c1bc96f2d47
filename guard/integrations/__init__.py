"""Adapters for agent frameworks (langgraph, agents, mcp) and web servers (web).

None of them is imported by ``import guard``; each imports its framework.
"""
