"""Each product's page, walked line by line over a socket."""
