"""The one session of a process with its gateway, and the events that it delivers."""
