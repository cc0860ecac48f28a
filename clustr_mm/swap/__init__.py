"""One of our backbones in somebody else's config."""
