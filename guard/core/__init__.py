"""Pure core: no asyncio, no I/O, no clock. Time is an argument."""
