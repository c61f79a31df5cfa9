"""Looking at stored messages without consuming them."""
