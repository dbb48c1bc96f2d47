"""The terminal that a run was started in."""

from __future__ import annotations

import contextlib
import os
import termios
from typing import Any, Self


class Terminal:
    """Restores the terminal's settings after a program that was ended from outside.

    Without a terminal it does nothing.
    """

    def __init__(self) -> None:
        self._device: int | None = None
        # The settings before the program started.
        self._settings: list[Any] = []
        # Whether the program was ended from outside.
        self._is_due = False

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError, termios.error):
            device = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            self._device = device
            self._settings = termios.tcgetattr(device)
        return self

    def restore_at_exit(self) -> None:
        """Restore the settings at the exit: an ended program may leave no echo and no line mode."""
        self._is_due = True

    def __exit__(self, *_: object) -> None:
        if self._device is None:
            return
        # In the background the terminal belongs to another program now.
        if self._is_due and self._settings and self._is_in_foreground(self._device):
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._device, termios.TCSADRAIN, self._settings)
        os.close(self._device)

    @staticmethod
    def _is_in_foreground(device: int) -> bool:
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(device) == os.getpgrp()
        return False
