"""What talks to the gateway. Runs on the background loop only."""
