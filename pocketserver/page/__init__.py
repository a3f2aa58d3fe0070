"""What a person sees in a browser: the server's page with its chat, pairing, and what only the owner may do."""
