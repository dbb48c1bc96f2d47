"""``guard demo``: an inbox-triage agent under guard, with a spam service and a local gateway.

An application over both packages of this distribution; neither of them imports it.
"""
