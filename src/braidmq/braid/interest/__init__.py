"""What clients here want, as other brokers come to know it: filters, shapes, scopes and demand."""
