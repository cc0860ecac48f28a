"""What models cost, how fast they are and what they look like inside."""
