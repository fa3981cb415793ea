"""`process`: message processors, shown, moved, and tried out."""
