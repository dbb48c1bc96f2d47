"""The proxy: any program under guard, by forwarding its LLM requests as they are.

It forwards with ``httpx`` and runs guard on itself, so bounds, leases, waiting, metering, tool
policy, kill and journal are those of every guarded program. New here are where a path goes, exact
forwarding, and the shape in which a refusal is told to the program.
"""
