"""Spans and metrics in the program's own OpenTelemetry."""
