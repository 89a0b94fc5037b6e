"""What a site configures once. Light imports only: Prefect imports this package at start-up."""
