"""What the client asks of a server, one module for each noun."""
