"""Kill and pause: from the control channel to a body that runs."""
