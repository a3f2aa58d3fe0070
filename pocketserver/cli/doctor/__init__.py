"""`pocketserver doctor`: what commonly goes wrong on machines and home networks, found out, with a remedy for each."""
