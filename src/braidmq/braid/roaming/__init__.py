"""Sessions that follow their clients: the directory of client ids, take-over, handover and displaced sessions."""
