"""The proxy: any program under guard, by forwarding its LLM requests as they are.

It forwards with ``httpx`` and runs guard on itself, so bounds, leases, waiting, metering, tool
policy, kill and journal are those of every guarded program. This package adds the mapping of paths
to vendors, exact forwarding, and refusals in each vendor's own format.
"""
