"""What the backbones learn: claims, runs that decide them, a report."""
