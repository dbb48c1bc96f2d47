"""``guard run``: an unmodified program under guard."""
