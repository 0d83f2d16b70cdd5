"""How others use a pair or a policy: graphs and configuration for other engines."""
