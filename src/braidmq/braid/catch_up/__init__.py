"""What a broker missed: the histories that keep it, how far they were followed, and how the rest is fetched."""
