"""HTTP to the gateway: one client, signatures, replies as exceptions."""
