"""`doctor`: whether this machine has what the broker and the pipeline need."""
