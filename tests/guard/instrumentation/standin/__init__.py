"""A local server that answers like the vendors do, and knows what it said that was used."""
