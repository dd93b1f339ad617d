"""Who a customer is."""
