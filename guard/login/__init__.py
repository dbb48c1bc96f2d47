"""``guard login``: this machine's login at a gateway, and the keys that it gives to tools."""
