"""What every test can rely on."""

from __future__ import annotations

import signal

# A run that was started in the background inherits an ignored SIGINT, and so would every program
# that the tests start; Ctrl-C is part of what they test.
signal.signal(signal.SIGINT, signal.default_int_handler)
