"""What stops a call: the exception tree and the circuit breaker."""
