"""The rows of the table of programs: how each is pointed at the proxy of a run."""
