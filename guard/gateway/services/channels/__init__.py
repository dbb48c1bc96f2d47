"""How a message looks to each kind of channel, and how it is sent there."""
