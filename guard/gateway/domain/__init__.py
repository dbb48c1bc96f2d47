"""Pure rules of the gateway: no I/O, no clock, no threads. Time is an argument."""
