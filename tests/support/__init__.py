"""What tests share: a breakable proxy, a clean runtime, waiting for conditions."""
