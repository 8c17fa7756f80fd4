"""Whether what ran at once could have run in an order: histories, clients, and who checks them."""
